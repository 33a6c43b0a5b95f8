#include "core/data/text_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/text.h"

namespace convoy {
namespace {

using Json = nlohmann::json;

struct Sign {
  std::string_view bytes;
  const char* what;
};

constexpr Sign signs[] = {
    {"\x93NUMPY", "an .npy array"},
    {"PK\x03\x04", "a ZIP archive, as .npz, .pt and .docx are"},
    {"\x1f\x8b", "compressed by gzip"},
    {"\xfd"
     "7zXZ",
     "compressed by xz"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd"},
    {"BZh", "compressed by bzip2"},
    {"\x89HDF", "an HDF5 file"},
    {"PAR1", "a Parquet table"},
    {"ARROW1", "an Arrow table"},
    {"%PDF-", "a PDF document"},
    {"\x89PNG", "a PNG image"},
    {"\xff\xd8\xff", "a JPEG image"},
    {"\x7f"
     "ELF",
     "a program"},
};

bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

bool is_letters(std::string_view sign) {
  return std::all_of(sign.begin(), sign.end(), [](unsigned char c) { return c >= ' ' && c < 0x7f; });
}

// A length of eight bytes that fits into the file, then a JSON map.
bool is_safetensors(std::string_view bytes) {
  uint64_t length = 0;
  if (bytes.size() < 10) return false;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length >= 2 && length <= bytes.size() - sizeof length && bytes[8] == '{';
}

// Bytes that text does not hold, whatever its encoding: some signs are letters that a text may begin with.
bool has_controls(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c < 8; });
}

constexpr char tokens_later[] = "text reads plain text and not tokens; give the text itself";

std::string binary_kind(std::string_view bytes) {
  const std::string_view first = bytes.substr(0, 1 << 16);
  for (const Sign& sign : signs)
    if (starts(bytes, sign.bytes) && (!is_letters(sign.bytes) || has_controls(first))) return str("is ", sign.what);
  if (is_safetensors(bytes)) return "is a safetensors file";
  if (starts(bytes, "\xff\xfe") || starts(bytes, "\xfe\xff")) return "is UTF-16";
  if (const size_t at = first.find('\0'); at != std::string_view::npos)
    return str("holds a NUL byte at byte ", at, ", as UTF-16 and files of token numbers do");
  return "";
}

// A list, or a map from token to number; what else there is in it is left out.
std::vector<std::string> tokens_in(const Json& json) {
  std::vector<std::string> tokens;
  if (json.is_array())
    for (const Json& token : json)
      if (token.is_string()) tokens.push_back(token.get<std::string>());
  if (json.is_object())
    for (const auto& [token, number] : json.items()) tokens.push_back(token);
  return tokens;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

// A mark that stands for a space or for "goes on within a word" begins several tokens.
bool marked_by(const std::vector<std::string>& tokens, std::string_view mark) {
  return std::count_if(tokens.begin(), tokens.end(),
                       [&](const std::string& token) { return token.size() > mark.size() && starts(token, mark); }) > 1;
}

// Literal tokens of a text hold its spaces and newlines somewhere; those of tokenizers never do.
bool any_space(const std::vector<std::string>& tokens, bool lines) {
  return std::any_of(tokens.begin(), tokens.end(), [&](const std::string& token) {
    if (token.find_first_of(" \t\n\r") != std::string::npos) return true;
    return lines && (token.find("\\s") != std::string::npos || token.find("\\n") != std::string::npos);
  });
}

std::string tokenizer_kind(const std::vector<std::string>& tokens, bool lines) {
  if (any_space(tokens, lines)) return "";
  if (marked_by(tokens, "\xc4\xa0")) return "byte-level BPE (GPT-2), where Ġ stands for a space";
  if (marked_by(tokens, "\xe2\x96\x81")) return "SentencePiece, where ▁ stands for a space";
  if (marked_by(tokens, "##")) return "WordPiece (BERT), where ## goes on within a word";
  return "";
}

}  // namespace

std::string not_text(std::string_view bytes) {
  const std::string kind = binary_kind(bytes);
  if (kind.empty()) return "";
  if (starts(kind, "is compressed")) return kind + "; decompress it first";
  if (starts(kind, "is UTF-16")) return kind + "; convert it first: iconv -f UTF-16 -t UTF-8";
  return kind + "; " + tokens_later;
}

std::string not_a_vocabulary(std::string_view bytes, const std::string& path) {
  constexpr char advice[] =
      "; data.vocabulary takes literal tokens, one a line or as JSON; give such a file, or vocabulary: bytes";
  if (const std::string kind = binary_kind(bytes); !kind.empty()) return kind + advice;
  if (starts(bytes, "#version")) return str("is the list of merges of a BPE tokenizer", advice);
  const bool named_json = path.size() > 5 && path.compare(path.size() - 5, 5, ".json") == 0;
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool map = first != std::string_view::npos && bytes[first] == '{';
  std::vector<std::string> tokens;
  if (named_json || map) {
    const Json json = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("model") && json["model"].is_object())
      return str("is the tokenizer.json of Hugging Face", advice);
    if (map && !named_json && json.is_object() && !json.empty())
      return str("is JSON, and its name does not end in .json; rename it");
    tokens = tokens_in(json);
  } else {
    tokens = lines_of(bytes);
  }
  const std::string kind = tokenizer_kind(tokens, !named_json);
  return kind.empty() ? "" : str("is the vocabulary of a tokenizer of the kind ", kind, advice);
}

}  // namespace convoy
