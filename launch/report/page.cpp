#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/text.h"
#include "core/control/channel.h"
#include "launch/report/report.h"

namespace convoy {

extern const char* const embedded_report_page;  // from launch/report/page, by cmake/embed_page.cmake

namespace {

// In a script element of JSON only `<` can end the element or begin a comment.
std::string script_safe(const std::string& json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 64);
  for (const char c : json)
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  return safe;
}

}  // namespace

std::string report_page(const std::string& data, bool live) {
  // The policy allows only the scripts and styles with this number, which data cannot know.
  const std::string nonce = random_token();
  const std::string_view page = embedded_report_page;
  std::string text;
  text.reserve(page.size() + data.size() + data.size() / 64);
  const std::pair<std::string_view, std::string> values[] = {{"{{nonce}}", nonce},
                                                             {"{{connect}}", live ? "'self'" : "'none'"},
                                                             {"{{live}}", live ? "true" : "false"},
                                                             {"{{data}}", script_safe(data)}};
  for (size_t at = 0; at < page.size();) {
    const size_t open = std::min(page.find("{{", at), page.size());
    text += page.substr(at, open - at);
    at = open;
    const auto named = std::find_if(std::begin(values), std::end(values),
                                    [&](const auto& value) { return begins_with(page.substr(at), value.first); });
    if (named != std::end(values)) {
      text += named->second;
      at += named->first.size();
    } else if (at < page.size()) {
      text += page[at++];
    }
  }
  return text;
}

}  // namespace convoy
