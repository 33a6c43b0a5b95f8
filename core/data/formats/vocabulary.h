// Vocabulary: byte strings (tokens) with the numbers 0 … size − 1. It splits a text into tokens.
//
// Rule: take the longest token that matches at each position. A byte that begins no token becomes the token `unknown`,
// or is an error. A text file has one token per line, in number order. \n, \t, \r, \s, \\ and \xHH mean newline, tab,
// carriage return, space, backslash and the byte HH. A JSON file has a list of tokens, or a map from token to number.
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
  // Error(corrupt_data) with file and line (JSON: with the reason) for an empty, repeated or badly escaped token, and
  // for numbers other than 0 … size − 1. Error(io) if the file is missing.
  static Vocabulary read(const std::string& path);
  explicit Vocabulary(std::vector<std::string> tokens, const std::string& path = "vocabulary");

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::string& token(int64_t number) const { return tokens_[static_cast<size_t>(number)]; }
  int64_t number_of(std::string_view token) const;  // -1 if it is not a token
  // Encodes all of `text`. `unknown`: the number for a byte that begins no token; -1: such a byte is
  // Error(corrupt_data) with `path` and the byte's offset from 0.
  std::vector<int32_t> encode(std::string_view text, int64_t unknown, const std::string& path) const;
  // Checks the tokens that begin in the first `bytes` bytes; throws like encode without `unknown`.
  void check(std::string_view text, size_t bytes, const std::string& path) const;
  std::string decode(const int32_t* tokens, int64_t count) const;
  std::string hash() const;  // hash of the tokens in order

 private:
  // Returns the longest token at `at` and its number of bytes; (−1, 1) if no token begins there.
  std::pair<int32_t, size_t> longest(std::string_view text, size_t at) const;
  [[noreturn]] static void refuse(std::string_view text, size_t at, const std::string& path);
  void add(const std::string& token, int32_t number, const std::string& path);

  std::vector<std::string> tokens_;
  // A trie: nodes are numbered, 0 is the root; key = node · 256 + byte.
  std::unordered_map<int64_t, int32_t> children_;
  std::vector<int32_t> ends_;  // number of the token that ends at a node; -1: none
};

}  // namespace convoy
