// Mutator: makes inputs from a corpus, for machines without libFuzzer.
//
// It knows nothing about a format. It flips bits, replaces, removes, repeats and exchanges pieces, splices two inputs,
// and replaces numbers in text and in binary by values at limits.
// Threads: one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace convoy::fuzz {

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, uint64_t seed) : corpus_(std::move(corpus)), random_(seed) {}

  std::string next() {
    std::string bytes = pick(corpus_);
    const size_t changes = 1 + below(below(4) == 0 ? 16 : 3);
    for (size_t i = 0; i < changes; ++i) change(bytes);
    constexpr size_t longest = 1 << 16;
    if (bytes.size() > longest) bytes.resize(longest);
    return bytes;
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  template <class T>
  const T& pick(const std::vector<T>& all) {
    return all[below(all.size())];
  }
  std::pair<size_t, size_t> range(const std::string& bytes, size_t most) {
    const size_t at = below(bytes.size() + 1);
    return {at, std::min(bytes.size() - at, 1 + below(most))};
  }

  void change(std::string& bytes) {
    const size_t at = below(bytes.size());
    switch (below(10)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {
        const auto [begin, size] = range(bytes, 64);
        bytes.erase(begin, size);
        break;
      }
      case 3: {
        const auto [begin, size] = range(bytes, 64);
        const std::string piece = bytes.substr(begin, size);
        for (size_t i = 1 + below(8); i > 0; --i) bytes.insert(begin, piece);
        break;
      }
      case 4: {  // another input's piece
        const std::string& other = pick(corpus_);
        const auto [begin, size] = range(other, 256);
        const auto [to, length] = range(bytes, 256);
        bytes.replace(to, length, other, begin, size);
        break;
      }
      case 5:
        bytes.resize(at);
        break;
      case 6:
        change_number(bytes);
        break;
      case 7:
        change_binary(bytes);
        break;
      case 8:
        bytes.insert(at, std::string(1 + below(300), static_cast<char>(below(256))));
        break;
      default: {
        static const std::vector<std::string> pieces{"\n",   "\r\n", "\t",       ",",  "\"",   "'",       "{",  "}",
                                                     "[",    "]",    ":",        "#",  "&a ",  "*a",      "%",  "\\",
                                                     "null", "~",    "\xff",     "é",  "true", "nan",     "..", "/",
                                                     "\0x",  "---",  "!!binary", "? ", "<<: ", "\\u0000", "- ", " "};
        bytes.insert(at, pick(pieces));
      }
    }
  }

  // Replaces a run of digits.
  void change_number(std::string& bytes) {
    const size_t from = bytes.find_first_of("0123456789", below(bytes.size()));
    if (from == std::string::npos) return;
    const size_t to = bytes.find_first_not_of("0123456789", from);
    static const std::vector<std::string> values{"0",
                                                 "-1",
                                                 "1",
                                                 "255",
                                                 "65536",
                                                 "2147483647",
                                                 "2147483648",
                                                 "4294967296",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "18446744073709551616",
                                                 "1e308",
                                                 "1e999",
                                                 "-1e-320",
                                                 "0.1"};
    bytes.replace(from, (to == std::string::npos ? bytes.size() : to) - from, pick(values));
  }

  // Overwrites an integer of 1 to 8 bytes.
  void change_binary(std::string& bytes) {
    static const std::vector<uint64_t> values{0,          1,          0x7f,       0x80,       0xff,
                                              0x7fff,     0x8000,     0xffff,     0x7fffffff, 0x80000000,
                                              0xffffffff, 1ull << 40, 1ull << 62, ~0ull >> 1, ~0ull};
    const size_t size = size_t{1} << below(4);
    if (bytes.size() < size) return;
    const uint64_t value = pick(values);
    char text[8];
    std::memcpy(text, &value, sizeof text);
    if (below(2) == 0) std::reverse(text, text + size);  // big-endian
    std::memcpy(&bytes[below(bytes.size() - size + 1)], text, size);
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

}  // namespace convoy::fuzz
