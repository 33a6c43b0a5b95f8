#include "core/data/npy_header.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace convoy {
namespace {

// Returns the text after a key of the header's dictionary, without leading spaces; "" where the key is missing.
std::string_view after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

// The text between `open`, which comes first, and `close`; nothing where it is otherwise.
std::optional<std::string> enclosed(std::string_view text, char open, char close) {
  const size_t end = text.find(close, 1);
  if (text.empty() || text[0] != open || end == std::string_view::npos) return std::nullopt;
  return std::string(text.substr(1, end - 1));
}

}  // namespace

NpyHeader read_npy_header(const std::string& path, std::string_view text) {
  const auto fail = [&](const std::string& reason) { throw Error(Failure::corrupt_data, str(path, ": ", reason)); };
  if (text.size() < 12 || text.substr(0, 6) != "\x93NUMPY") fail("is no .npy file");
  const int major = text[6];
  if (major < 1 || major > 3) fail(str("is of .npy version ", major, "; 1 to 3 can be read"));
  const size_t length_bytes = major == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = length_bytes; i > 0; --i) length = length << 8 | static_cast<unsigned char>(text[8 + i - 1]);
  NpyHeader made;
  made.data = 8 + length_bytes + length;
  if (made.data > text.size()) fail("ends within its header");

  const std::string_view header = text.substr(8 + length_bytes, length);
  const auto descr = enclosed(after(header, "'descr':"), '\'', '\'');
  const auto shape = enclosed(after(header, "'shape':"), '(', ')');
  const std::string_view order = after(header, "'fortran_order':");
  made.fortran = order.substr(0, 4) == "True";
  if (!descr || !shape || shape->find_first_not_of("0123456789, ") != std::string::npos ||
      (!made.fortran && order.substr(0, 5) != "False"))
    fail("has a header that is not of plain numbers");
  made.type = *descr;
  for (size_t at = 0; (at = shape->find_first_of("0123456789", at)) != std::string::npos;) {
    const std::string digits = shape->substr(at, shape->find_first_not_of("0123456789", at) - at);
    at += digits.size();
    if (digits.size() > 18) fail("has impossible sizes");
    made.shape.push_back(std::stoll(digits));
  }
  return made;
}

}  // namespace convoy
