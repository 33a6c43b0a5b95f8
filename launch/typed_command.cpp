#include "launch/typed_command.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

#include "launch/prepare.h"

namespace convoy {

std::string typed_command(const RunArguments& arguments) {
  std::vector<std::string> words{"convoy"};
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  if (!arguments.config.empty()) words.push_back(arguments.config);
  for (const std::string& item : arguments.overrides)
    if (item.rfind("train.resume=", 0) != 0) words.insert(words.end(), {"--set", item});
  if (arguments.ranks > 0) words.insert(words.end(), {"--ranks", std::to_string(arguments.ranks)});
  if (!arguments.hosts.empty()) words.insert(words.end(), {"--hosts", join(arguments.hosts, ",")});
  for (std::string& word : words) word = shell_word(word);
  return join(words, " ");
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != '\0' && std::strchr("-_=./:,+%@", c) != nullptr);
  });
  if (plain) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace convoy
