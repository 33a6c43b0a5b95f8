#include "core/data/catalogue/text_files.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/data/formats/input_files.h"
#include "core/data/formats/token_file.h"
#include "core/data/formats/tokenizer.h"
#include "core/data/formats/vocabulary.h"

namespace convoy {
namespace {

struct Sign {
  std::string_view bytes;
  const char* what;
  std::string_view end = "";  // last bytes of the file; "": any
};

constexpr size_t searched = 1 << 16;  // bytes of a file in which control bytes count

constexpr Sign signs[] = {
    {"\x93NUMPY", "an .npy array"},
    {"\x80\x02", "a pickle of Python"},
    {"\x80\x03", "a pickle of Python"},
    {"\x80\x04", "a pickle of Python"},
    {"\x80\x05", "a pickle of Python"},
    {"PK\x03\x04", "a ZIP archive, as .npz, .pt and .docx are"},
    {"\x1f\x8b", "compressed by gzip"},
    {"\xfd"
     "7zXZ",
     "compressed by xz"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd"},
    {"BZh", "compressed by bzip2"},
    {"\x89HDF", "an HDF5 file"},
    {"PAR1", "a Parquet table", "PAR1"},
    {"ARROW1", "an Arrow table", "ARROW1"},
    {"%PDF-", "a PDF document"},
    {"\x89PNG", "a PNG image"},
    {"\xff\xd8\xff", "a JPEG image"},
    {"\x7f"
     "ELF",
     "a program"},
};

bool is_letters(std::string_view sign) {
  return std::all_of(sign.begin(), sign.end(), [](unsigned char c) { return c >= ' ' && c < 0x7f; });
}

// Starts with an eight-byte length that fits into the file, then a JSON map.
bool is_safetensors(std::string_view bytes) {
  uint64_t length = 0;
  if (bytes.size() < 10) return false;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length >= 2 && length <= bytes.size() - sizeof length && bytes[8] == '{';
}

// First of the control bytes that no encoding of text has; npos if there is none.
size_t first_control(std::string_view bytes) {
  const auto* const found = std::find_if(bytes.begin(), bytes.end(), [](unsigned char c) { return c < 8; });
  return found == bytes.end() ? std::string_view::npos : size_t(found - bytes.begin());
}

// Some signatures are letters with which a text may begin.
bool has_sign(std::string_view bytes, const Sign& sign, bool has_controls) {
  if (!begins_with(bytes, sign.bytes)) return false;
  const bool ends = !sign.end.empty() && bytes.size() > 2 * sign.end.size() &&
                    bytes.substr(bytes.size() - sign.end.size()) == sign.end;
  return !is_letters(sign.bytes) || has_controls || ends;
}

std::string binary_kind(std::string_view bytes) {
  const std::string_view first = bytes.substr(0, searched);
  const bool has_controls = first_control(first) != std::string_view::npos;
  for (const Sign& sign : signs)
    if (has_sign(bytes, sign, has_controls)) return str("is ", sign.what);
  if (is_safetensors(bytes)) return "is a safetensors file";
  if (begins_with(bytes, "\xff\xfe") || begins_with(bytes, "\xfe\xff")) return "is UTF-16";
  if (const size_t at = first.find('\0'); at != std::string_view::npos)
    return str("holds a NUL byte at byte ", at, ", as UTF-16 and files of token numbers do");
  return "";
}

// Returns the tokens of a list, or of a map from token to number. Ignores other values.
std::vector<std::string> tokens_in(const nlohmann::json& json) {
  std::vector<std::string> tokens;
  if (json.is_array())
    for (const nlohmann::json& token : json)
      if (token.is_string()) tokens.push_back(token.get<std::string>());
  if (json.is_object())
    for (const auto& [token, number] : json.items()) tokens.push_back(token);
  return tokens;
}

// True if several tokens begin with `prefix`, the text by which a tokenizer marks a space or the continuation of a
// word.
bool marked_by(const std::vector<std::string>& tokens, std::string_view prefix) {
  return std::count_if(tokens.begin(), tokens.end(), [&](const std::string& token) {
           return token.size() > prefix.size() && begins_with(token, prefix);
         }) > 1;
}

// True if some token has a space or newline. Literal tokens of a text do; tokens of tokenizers never do.
bool any_space(const std::vector<std::string>& tokens, bool lines) {
  return std::any_of(tokens.begin(), tokens.end(), [&](const std::string& token) {
    if (token.find_first_of(" \t\n\r") != std::string::npos) return true;
    return lines && (token.find("\\s") != std::string::npos || token.find("\\n") != std::string::npos);
  });
}

std::string tokenizer_kind(const std::vector<std::string>& tokens, bool lines) {
  if (any_space(tokens, lines)) return "";
  // Tested before the sign of GPT-2, because CLIP has a token for the space too.
  const auto ends_word = [](const std::string& token) { return token.size() > 4 && ends_in(token, "</w>"); };
  if (std::count_if(tokens.begin(), tokens.end(), ends_word) > 1) return "BPE (GPT-1, CLIP), where </w> ends a word";
  if (marked_by(tokens, "\xc4\xa0")) return "byte-level BPE (GPT-2), where Ġ stands for a space";
  if (marked_by(tokens, "\xe2\x96\x81")) return "SentencePiece, where ▁ stands for a space";
  if (marked_by(tokens, "##")) return "WordPiece (BERT), where ## continues a word";
  return "";
}

// The reason why this file is not a vocabulary of literal tokens, with advice; "" if it may be one. Recognises binary
// files and files of tokenizers (byte-level BPE, WordPiece, SentencePiece): their tokens encode text by other rules.
std::string vocabulary_problem(std::string_view bytes, const std::string& path) {
  constexpr char advice[] =
      "; data.vocabulary takes literal tokens, one a line or as JSON; give such a file, vocabulary: bytes, or a "
      "byte-level BPE as data.tokenizer";
  if (const std::string kind = binary_kind(bytes); !kind.empty()) return kind + advice;
  if (begins_with(bytes, "#version")) return str("is the list of merges of a BPE tokenizer", advice);
  const bool named_json = ends_in(path, ".json");
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool map = first != std::string_view::npos && bytes[first] == '{';
  std::vector<std::string> tokens;
  if (named_json || map) {
    const nlohmann::json json = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("model") && json["model"].is_object())
      return str("is the tokenizer.json of Hugging Face", advice);
    if (map && !named_json && json.is_object() && !json.empty())
      return str("is JSON, but its name does not end in .json; rename it");
    tokens = tokens_in(json);
  } else {
    tokens = split(bytes, '\n');
  }
  const std::string kind = tokenizer_kind(tokens, !named_json);
  return kind.empty() ? "" : str("is the vocabulary of a tokenizer of the kind ", kind, advice);
}

namespace fs = std::filesystem;

// Reads the vocabulary and tries it on the beginning of the text. Errors later in the text surface on the ranks.
// Returns the number of tokens.
int64_t check_vocabulary(const Options& options) {
  constexpr size_t tried = 1 << 20;
  const std::string& path = options.text("path");
  const std::string unknown = options.has("unknown") ? options.text("unknown") : "";
  const Vocabulary vocabulary = options.located("vocabulary", [&] {
    const MappedFile file(options.text("vocabulary"));
    const std::string problem = vocabulary_problem(file.text(), file.path());
    if (!problem.empty()) options.fail("vocabulary", file.path(), ": ", problem);
    return Vocabulary::read(options.text("vocabulary"));
  });
  if (!unknown.empty() && vocabulary.number_of(unknown) < 0)
    options.fail("unknown", "is '", unknown, "', which is not a token of data.vocabulary");
  if (!unknown.empty()) return vocabulary.size();
  try {
    const MappedFile text(path);
    vocabulary.check(text.text(), tried, path);
  } catch (const Error& error) {
    options.fail("vocabulary", error.what());
  }
  return vocabulary.size();
}

// A token of text has at least one byte, so the file size limits the number of tokens.
void check_text(const Options& options) {
  std::error_code none;
  const std::string& path = options.text("path");
  const auto bytes = static_cast<int64_t>(fs::file_size(path, none));
  const int64_t length = options.integer("length");
  if (none) return;
  if (const std::string problem = text_problem(MappedFile(path).text()); !problem.empty())
    options.fail("path", path, ": ", problem);
  if (bytes > length) return;
  if (bytes == 0) options.fail("path", path, ": is empty");
  options.fail("length", "is ", length, ", but ", path, " has ", bytes, bytes == 1 ? " byte" : " bytes",
               "; a sequence needs one more than its length, because the last token is only a target");
}

// Ranks check all tokens.
void check_token_file(const Options& options, int64_t vocabulary_size) {
  constexpr int64_t tried = 1 << 20;
  const int64_t length = options.integer("length");
  at_key(options, "path", [&] {
    const MappedFile file(options.text("path"));
    if (file.text().empty()) throw Error(Failure::config, file.path(), ": is empty");
    const TokenFile tokens = read_token_file(options.text("format"), file.path(), file.text());
    if (tokens.count <= length)
      options.fail("length", "is ", length, ", but ", file.path(), " has ", tokens.count,
                   " tokens; a sequence needs one more than its length, because the last token is only "
                   "a target");
    check_tokens(tokens, file.path(), file.text(), 0, std::min(tried, tokens.count), vocabulary_size);
  });
}

}  // namespace

std::string text_problem(std::string_view bytes) {
  std::string kind = binary_kind(bytes);
  if (const size_t at = first_control(bytes.substr(0, searched)); kind.empty() && at != std::string_view::npos)
    kind =
        str("holds the control byte ", static_cast<int>(bytes[at]), " at byte ", at, ", as files of token numbers do");
  if (kind.empty()) return "";
  if (begins_with(kind, "is compressed")) return kind + "; decompress it first";
  if (begins_with(kind, "is UTF-16")) return kind + "; convert it first: iconv -f UTF-16 -t UTF-8";
  if (begins_with(kind, "is an .npy")) return kind + "; for numbers of tokens write data.format: npy";
  if (begins_with(kind, "holds "))
    return kind + "; for numbers of tokens write data.format: uint16 or uint32; else give the text itself";
  return kind + "; write its text to a file of text, or the numbers of its tokens to an .npy file (numpy.save)";
}

void check_text_files(const Options& options) {
  const bool tokens = holds_tokens(options.text("format"), options.text("path"));
  if (!tokens) check_text(options);
  int64_t vocabulary_size = 0;
  if (options.has("tokenizer")) {
    at_key(options, "tokenizer", [&] { vocabulary_size = Tokenizer::read(options.text("tokenizer")).size(); });
  } else if (!tokens && options.text("vocabulary") != "bytes") {
    vocabulary_size = check_vocabulary(options);
  } else if (!tokens) {
    vocabulary_size = 256;
  }
  if (options.has("vocabulary_size")) {
    const int64_t declared = options.integer("vocabulary_size");
    if (declared < vocabulary_size)
      options.fail("vocabulary_size", "is ", declared, ", but there are ", vocabulary_size,
                   " tokens; leave it out, or raise it to that number");
    vocabulary_size = declared;
  }
  if (tokens) check_token_file(options, vocabulary_size);
}

}  // namespace convoy
