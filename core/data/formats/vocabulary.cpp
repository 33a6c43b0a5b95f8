#include "core/data/formats/vocabulary.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/data/formats/input_files.h"

namespace convoy {
namespace {

[[noreturn]] void fail(const std::string& where, const std::string& reason) {
  throw Error(Failure::corrupt_data, where + ": " + reason);
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string unescaped(std::string_view line, const std::string& where) {
  static constexpr std::string_view marks = "ntrs\\", bytes = "\n\t\r \\";
  std::string token;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      token += line[i];
      continue;
    }
    const char escape = i + 1 < line.size() ? line[i + 1] : '\0';
    if (const size_t known = marks.find(escape); known != std::string_view::npos) {
      token += bytes[known];
      i += 1;
    } else if (escape == 'x' && i + 3 < line.size() && digit(line[i + 2]) >= 0 && digit(line[i + 3]) >= 0) {
      token += static_cast<char>(digit(line[i + 2]) * 16 + digit(line[i + 3]));
      i += 3;
    } else {
      fail(where, "a backslash stands before n, t, r, s, another backslash or xHH; write \\\\ for itself");
    }
  }
  return token;
}

std::vector<std::string> from_lines(std::string_view text, const std::string& path) {
  std::vector<std::string> tokens;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    tokens.push_back(unescaped(line, str(path, ":", ++number)));
    if (tokens.back().empty()) fail(str(path, ":", number), "the line is empty; a newline is written \\n");
  }
  return tokens;
}

std::string text_of(const nlohmann::json& token, const std::string& path) {
  if (!token.is_string()) fail(path, "a vocabulary's list holds strings, and this one holds " + token.dump());
  return token.get<std::string>();
}

// "FILE:LINE:COLUMN" of a byte.
std::string location_text(const std::string& path, std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  return str(path, ":", lines + 1, ":", at - (lines == 0 ? 0 : before.rfind('\n') + 1) + 1);
}

// "FILE:LINE:COLUMN" of a token. Returns only the file if it escapes the token differently from this library.
std::string token_location_text(const std::string& path, std::string_view text, const std::string& token) {
  const size_t at = text.find(nlohmann::json(token).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return at == std::string_view::npos ? path : location_text(path, text, at);
}

std::vector<std::string> from_json(std::string_view text, const std::string& path) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    fail(location_text(path, text, error.byte == 0 ? 0 : error.byte - 1), "is not JSON");
  } catch (const nlohmann::json::exception&) {
    fail(path, "is not JSON: a number is out of range");
  }
  std::vector<std::string> tokens;
  if (json.is_array()) {
    for (const auto& token : json) tokens.push_back(text_of(token, path));
    return tokens;
  }
  tokens.resize(json.size());
  std::vector<bool> taken(json.size(), false);
  for (const auto& [token, number] : json.items()) {
    const int64_t at = number.is_number_integer() ? number.get<int64_t>() : -1;
    if (at < 0 || at >= static_cast<int64_t>(tokens.size()))
      fail(token_location_text(path, text, token),
           str("token ", shown(token), " has the number ", number.dump(), "; those of ", tokens.size(),
               " tokens are 0 to ", tokens.size() - 1, ", without a gap"));
    if (taken[static_cast<size_t>(at)])
      fail(token_location_text(path, text, token),
           str("tokens ", shown(tokens[static_cast<size_t>(at)]), " and ", shown(token), " both have the number ", at));
    taken[static_cast<size_t>(at)] = true;
    tokens[static_cast<size_t>(at)] = token;
  }
  return tokens;
}

}  // namespace

Vocabulary Vocabulary::read(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const auto first = std::find_if_not(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; });
  if (first == text.end()) fail(path, "holds no tokens");
  // A list of tokens may begin with a bracket too; only a .json file is JSON.
  const bool json = ends_in(path, ".json");
  return Vocabulary(json ? from_json(text, path) : from_lines(text, path), path);
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, const std::string& path) : ends_{-1} {
  if (tokens.empty()) fail(path, "holds no tokens");
  if (tokens.size() > size_t(1) << 24) fail(path, str("holds ", tokens.size(), " tokens; the maximum is 16777216"));
  for (size_t i = 0; i < tokens.size(); ++i) add(tokens[i], static_cast<int32_t>(i), path);
  tokens_ = std::move(tokens);
}

void Vocabulary::add(const std::string& token, int32_t number, const std::string& path) {
  if (token.empty()) fail(path, str("token number ", number, " is empty"));
  int32_t node = 0;
  for (const char c : token) {
    const int64_t key = int64_t(node) * 256 + static_cast<unsigned char>(c);
    const auto [found, made] = children_.try_emplace(key, static_cast<int32_t>(ends_.size()));
    if (made) ends_.push_back(-1);
    node = found->second;
  }
  int32_t& end = ends_[static_cast<size_t>(node)];
  if (end >= 0) fail(path, str("token '", token, "' is there twice, as number ", end, " and ", number));
  end = number;
}

int64_t Vocabulary::number_of(std::string_view token) const {
  int32_t node = 0;
  for (const char c : token) {
    const auto child = children_.find(int64_t(node) * 256 + static_cast<unsigned char>(c));
    if (child == children_.end()) return -1;
    node = child->second;
  }
  return ends_[static_cast<size_t>(node)];
}

std::pair<int32_t, size_t> Vocabulary::longest(std::string_view text, size_t at) const {
  int32_t node = 0, best = -1;
  size_t length = 1;
  for (size_t i = at; i < text.size(); ++i) {
    const auto child = children_.find(int64_t(node) * 256 + static_cast<unsigned char>(text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (ends_[static_cast<size_t>(node)] < 0) continue;
    best = ends_[static_cast<size_t>(node)];
    length = i + 1 - at;
  }
  return {best, length};
}

void Vocabulary::refuse(std::string_view text, size_t at, const std::string& path) {
  fail(path, str("byte ", at, " (value ", static_cast<int>(static_cast<unsigned char>(text[at])),
                 ") begins no token of the vocabulary; name a token for such bytes by data.unknown, or add it"));
}

std::vector<int32_t> Vocabulary::encode(std::string_view text, int64_t unknown, const std::string& path) const {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size() / 3);
  for (size_t at = 0; at < text.size();) {
    const auto [token, length] = longest(text, at);
    if (token < 0 && unknown < 0) refuse(text, at, path);
    tokens.push_back(token < 0 ? static_cast<int32_t>(unknown) : token);
    at += length;
  }
  return tokens;
}

void Vocabulary::check(std::string_view text, size_t bytes, const std::string& path) const {
  for (size_t at = 0; at < std::min(bytes, text.size());) {
    const auto [token, length] = longest(text, at);
    if (token < 0) refuse(text, at, path);
    at += length;
  }
}

std::string Vocabulary::decode(const int32_t* tokens, int64_t count) const {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += token(tokens[i]);
  return text;
}

std::string Vocabulary::hash() const {
  Hasher hasher;
  for (const std::string& token : tokens_) {
    const uint64_t size = token.size();  // separates tokens, so that different lists have different hashes
    hasher.add(&size, sizeof size);
    hasher.add(token.data(), token.size());
  }
  return hasher.hex();
}

}  // namespace convoy
