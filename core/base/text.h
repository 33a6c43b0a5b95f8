// Text helpers without a formatting library (LibTorch and spdlog ship clashing copies of fmt). Without LibTorch.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace convoy {

// Concatenates values that have operator<<.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);

std::vector<std::string> split(std::string_view text, char separator);  // at least one part
std::string shape_text(const std::vector<int64_t>& shape);              // "[2, 3]"
// "1 rank", "2 ranks". `several`: the plural of a noun that needs more than an s.
std::string counted(int64_t count, const std::string& noun, const std::string& several = "");
std::string hex_text(const unsigned char* bytes, size_t count);
// Returns 128 random bits of the system as hex: a secret, a job id, part of a temporary name. Error(io) without them.
std::string random_token();
inline bool begins_with(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }
// True if the text ends in `end` and is longer than that: "a.npy" ends in ".npy".
bool ends_in(std::string_view text, std::string_view end);

// Returns the candidate with the smallest edit distance to `word`, or "" if none is near enough to be a typing
// mistake.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "12.5 MiB", "1.2 s": for messages only.
std::string human_bytes(double bytes);
template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer>>>
std::string human_bytes(Integer bytes) {
  return human_bytes(static_cast<double>(bytes));
}
std::string human_seconds(double seconds);
inline std::string human_seconds(std::chrono::milliseconds time) {
  return human_seconds(std::chrono::duration<double>(time).count());
}

// --- Hardware threads as text: "0", "0-3", "0-3+8"; '+' joins ranges ---

// Returns the numbers in the order written, ascending within each range; empty for an invalid text.
std::vector<int> hardware_threads_from_text(const std::string& text);

// Returns the shortest text of the numbers, sorted and without duplicates; "" for none.
std::string hardware_threads_text(std::vector<int> numbers);

// Short text of ascending ranks, for messages only: "0-7", "0-1016 by 8", "0-3, 16-19, 32-35, … (256)".
std::string ranks_text(const std::vector<int>& ranks);
std::string named_ranks(const std::vector<int>& ranks);  // the same with a noun: "rank 2", "ranks 2-3"

// --- Text from libraries and files, made safe for JSON and terminals ---

// Returns how many bytes of `text` fit into `most` without splitting a character. Async-signal-safe.
inline size_t utf8_prefix(const char* text, size_t length, size_t most) noexcept {
  if (length <= most) return length;
  size_t keep = most;
  while (keep > 0 && (static_cast<unsigned char>(text[keep]) & 0xc0) == 0x80) --keep;
  return keep;
}

// Returns the first 160 bytes of a text, for messages; "…" marks that there are more.
std::string shortened(const std::string& text);

// Returns the length of the UTF-8 character at the start of a text that is not empty; 0 if there is none.
size_t utf8_character(std::string_view text);

// Returns the user's text for a message: in quotes, shortened, control characters escaped.
std::string shown(const std::string& text);
std::string printable(const std::string& text);  // the same without quotes and shortening

// Replaces every byte outside of a UTF-8 character by '?'.
std::string valid_utf8(std::string_view text);

// Returns `word`, in quotes if a POSIX shell would change it.
std::string shell_word(const std::string& word);

// Escapes control characters (except newline and tab) and invalid UTF-8 bytes as "\x1b". Other characters stay.
std::string terminal_safe(std::string_view text);

}  // namespace convoy
