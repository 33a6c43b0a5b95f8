// A vocabulary: byte strings with the numbers 0 … size − 1, and how a text is cut into them.
//
// Rule: from each position the longest token that the text goes on with; a byte that begins none is the token `unknown`,
// or an error. Files hold one token a line in the order of their numbers (\n, \t, \r, \s, \\ and \xHH stand for newline,
// tab, carriage return, space, backslash and the byte HH), or JSON: a list of tokens, or a map from token to number.
// Threads: const after construction.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace convoy {

class Vocabulary {
 public:
  // Error(corrupt_data) with file and line (JSON: what is wrong) for an empty, repeated or badly escaped token and for
  // numbers that are not 0 … size − 1; Error(io) for a file that is not there.
  static Vocabulary read(const std::string& path);
  explicit Vocabulary(std::vector<std::string> tokens, const std::string& path = "vocabulary");

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::string& token(int64_t number) const { return tokens_[static_cast<size_t>(number)]; }
  int64_t number_of(std::string_view token) const;  // -1 when it is none
  // Of all of `text`. unknown: the number for a byte that begins no token, -1: Error(corrupt_data) naming `path` and the
  // byte's place, from 0.
  std::vector<int32_t> encode(std::string_view text, int64_t unknown, const std::string& path) const;
  // What encode throws without `unknown`, of tokens that begin in the first so many bytes.
  void check(std::string_view text, size_t bytes, const std::string& path) const;
  std::string decode(const int32_t* tokens, int64_t count) const;
  std::string hash() const;  // of the tokens in their order

 private:
  // The longest token that the text goes on with, and its bytes; −1, and 1, where there is none.
  std::pair<int32_t, size_t> longest(std::string_view text, size_t at) const;
  [[noreturn]] static void refuse(std::string_view text, size_t at, const std::string& path);
  void add(const std::string& token, int32_t number, const std::string& path);

  std::vector<std::string> tokens_;
  // A trie: nodes are numbered, 0 is the root; key = node · 256 + byte.
  std::unordered_map<int64_t, int32_t> children_;
  std::vector<int32_t> ends_;  // token that ends at a node, -1: none
};

}  // namespace convoy
