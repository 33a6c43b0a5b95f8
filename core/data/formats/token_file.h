// Token files: numbers of tokens, one after another, as an .npy array or without a header. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace convoy {

enum class TokenType { uint8, uint16, uint32, int32, int64 };
int64_t bytes_of(TokenType type);

// Position of the tokens in their file.
struct TokenFile {
  TokenType type = TokenType::uint16;
  size_t begin = 0;   // offset of the first token
  int64_t count = 0;  // tokens
};

// True if `format` and the file's name select a file of tokens instead of text.
bool holds_tokens(const std::string& format, const std::string& path);

// `text`: the whole file. Throws Error(corrupt_data) with `path` for a truncated file, an array of several dimensions,
// or other types of numbers.
TokenFile read_token_file(const std::string& format, const std::string& path, std::string_view text);

void copy_tokens(const TokenFile& file, std::string_view text, int64_t first, int64_t count, int64_t* to);

// Throws Error(corrupt_data) with file, token and byte if a token of first … first + count − 1 is not in 0 … size − 1.
void check_tokens(const TokenFile& file, const std::string& path, std::string_view text, int64_t first, int64_t count,
                  int64_t size);

}  // namespace convoy
