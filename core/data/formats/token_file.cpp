#include "core/data/formats/token_file.h"

#include <cstring>
#include <map>
#include <type_traits>

#include "core/base/error.h"
#include "core/data/formats/npy_header.h"

namespace convoy {
namespace {

template <class Token>
int64_t token_at(const char* tokens, int64_t index) {
  Token token = 0;  // the file need not be aligned
  std::memcpy(&token, tokens + index * int64_t(sizeof token), sizeof token);
  return static_cast<int64_t>(token);
}

// Index of the first token outside of 0 … size − 1; −1: none.
template <class Token>
int64_t first_foreign(const char* tokens, int64_t first, int64_t count, int64_t size) {
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t token = token_at<Token>(tokens, i);
    if (token < 0 || token >= size) return i;
  }
  return -1;
}

// Calls `use` with a null pointer to the type.
template <class Use>
auto with_type(TokenType type, const Use& use) {
  switch (type) {
    case TokenType::uint8:
      return use(static_cast<uint8_t*>(nullptr));
    case TokenType::uint16:
      return use(static_cast<uint16_t*>(nullptr));
    case TokenType::uint32:
      return use(static_cast<uint32_t*>(nullptr));
    case TokenType::int32:
      return use(static_cast<int32_t*>(nullptr));
    case TokenType::int64:
      break;
  }
  return use(static_cast<int64_t*>(nullptr));
}

}  // namespace

int64_t bytes_of(TokenType type) {
  return with_type(type, [](auto* token) { return static_cast<int64_t>(sizeof *token); });
}

bool holds_tokens(const std::string& format, const std::string& path) {
  return format == "auto" ? ends_in(path, ".npy") : format != "text";
}

TokenFile read_token_file(const std::string& format, const std::string& path, std::string_view text) {
  const auto fail = [&](const std::string& reason) { throw Error(Failure::corrupt_data, path, ": ", reason); };
  TokenFile file;
  if (format == "uint16" || format == "uint32") {
    if (begins_with(text, "\x93NUMPY"))
      fail(str("is an .npy array, but data.format is ", format, "; write format: npy"));
    file.type = format == "uint16" ? TokenType::uint16 : TokenType::uint32;
    const int64_t size = bytes_of(file.type);
    file.count = static_cast<int64_t>(text.size()) / size;
    if (static_cast<int64_t>(text.size()) % size != 0)
      fail(str("has ", text.size(), " bytes, which are no whole number of tokens of ", size,
               " bytes: the file is truncated, or data.format is wrong"));
    return file;
  }
  const NpyHeader header = read_npy_header(path, text);
  static const std::map<std::string, TokenType> types{{"|u1", TokenType::uint8},  {"<u2", TokenType::uint16},
                                                      {"<u4", TokenType::uint32}, {"<i4", TokenType::int32},
                                                      {"<i8", TokenType::int64},  {"<u8", TokenType::int64}};
  const auto type = types.find(header.type);
  if (type == types.end())
    fail(str("holds numbers of type ", header.type,
             "; tokens are uint8, uint16, uint32, int32 or int64, little-endian"));
  if (header.shape.size() != 1)
    fail(str("has the shape ", shape_text(header.shape),
             "; tokens are one after another, in one dimension: save "
             "array.reshape(-1)"));
  file = {type->second, header.data, header.shape[0]};
  const auto there = static_cast<int64_t>(text.size() - header.data) / bytes_of(file.type);
  if (there < file.count)
    fail(str("is truncated: its header declares ", file.count, " tokens, but the file has ", there));
  return file;
}

void copy_tokens(const TokenFile& file, std::string_view text, int64_t first, int64_t count, int64_t* to) {
  const char* tokens = text.data() + file.begin;
  with_type(file.type, [&](auto* token) {
    for (int64_t i = 0; i < count; ++i) to[i] = token_at<std::remove_pointer_t<decltype(token)>>(tokens, first + i);
  });
}

void check_tokens(const TokenFile& file, const std::string& path, std::string_view text, int64_t first, int64_t count,
                  int64_t size) {
  const char* tokens = text.data() + file.begin;
  const int64_t foreign = with_type(file.type, [&](auto* token) {
    return first_foreign<std::remove_pointer_t<decltype(token)>>(tokens, first, count, size);
  });
  if (foreign < 0) return;
  const int64_t found = with_type(
      file.type, [&](auto* token) { return token_at<std::remove_pointer_t<decltype(token)>>(tokens, foreign); });
  throw Error(Failure::corrupt_data, path, ": token ", foreign, " (byte ",
              static_cast<int64_t>(file.begin) + foreign * bytes_of(file.type), ") is ", found,
              ", and the vocabulary has 0 to ", size - 1,
              "; give the tokenizer of this file, or a larger data.vocabulary_size");
}

}  // namespace convoy
