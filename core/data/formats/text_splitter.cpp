#include "core/data/formats/text_splitter.h"

#include <re2/re2.h>

#include "core/base/error.h"

namespace convoy {

const char gpt2_pieces[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view ahead = R"(\s+(?!\S)|\s+)", run_name = "run_of_spaces";
// Contents of two character classes: Unicode's property White_Space, and the characters that \w matches.
constexpr char spaces[] = R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr char word[] = R"(\p{L}\p{M}\p{Nd}\p{Pc})";

[[noreturn]] void refuse_expression(const std::string& where, std::string_view expression, const std::string& reason) {
  throw Error(Failure::config, where, ": the expression ", expression, " is not supported: ", reason,
              "; RE2 has no look-around but \\s+(?!\\S)|\\s+, and no possessive repetition");
}

// Writes Unicode's classes for \s, \S, \d, \D, \w and \W, because RE2 knows only the ASCII part.
std::string with_unicode_classes(std::string_view expression, const std::string& where) {
  std::string text;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = c == '\\' && i + 1 < expression.size() ? expression[i + 1] : '\0';
    const auto members = [&](const char* list) { text += in_class ? std::string(list) : str("[", list, "]"); };
    if (next == 's') members(spaces);
    if (next == 'd') members(R"(\p{Nd})");
    if (next == 'w') members(word);
    // A complement cannot be written as members of a class.
    if (in_class && (next == 'S' || next == 'W'))
      refuse_expression(where, expression, str("\\", next, " within a class"));
    if (next == 'S') text += str("[^", spaces, "]");
    if (next == 'D') text += R"(\P{Nd})";
    if (next == 'W') text += str("[^", word, "]");
    if (next == '\0') {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      text += c;
      continue;
    }
    if (std::string_view("sdwSDW").find(next) == std::string_view::npos) text += {c, next};
    ++i;
  }
  return text;
}

bool is_space(std::string_view text) {
  static const RE2 all(str("[", spaces, "]+"));
  return RE2::FullMatch(re2::StringPiece(text.data(), text.size()), all);
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80) --at;
  return at;
}

RE2::Options options_of(bool longest) {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_longest_match(longest);
  options.set_max_mem(int64_t{64} << 20);  // the automata of Unicode's classes are large
  return options;
}

}  // namespace

TextSplitter::TextSplitter(const std::string& expression, const std::string& where) {
  std::string text = expression;
  const size_t at = text.find(ahead);
  const bool runs = at != std::string::npos;
  if (runs) text.replace(at, ahead.size(), str("(?P<", run_name, R"(>\s+))"));
  compiled_ = std::make_shared<RE2>(with_unicode_classes(text, where), options_of(false));
  if (!compiled_->ok()) refuse_expression(where, expression, compiled_->error());
  if (runs) run_ = compiled_->NamedCapturingGroups().at(std::string(run_name));
}

TextSplitter::TextSplitter(const std::vector<std::string>& literals) {
  std::vector<std::string> quoted;
  for (const std::string& literal : literals) quoted.push_back(RE2::QuoteMeta(literal));
  compiled_ = std::make_shared<RE2>(join(quoted, "|"), options_of(true));
  CONVOY_CHECK(compiled_->ok(), "literals: ", compiled_->error());
}

std::string_view TextSplitter::match(std::string_view text, size_t from) const {
  const re2::StringPiece all(text.data(), text.size());
  re2::StringPiece found;
  // Almost always a match begins at `from`, and an anchored search is faster: it does not scan for the begin.
  if (!compiled_->Match(all, from, text.size(), RE2::ANCHOR_START, &found, 1) &&
      !compiled_->Match(all, from, text.size(), RE2::UNANCHORED, &found, 1))
    return {};
  std::string_view piece(found.data(), found.size());
  const auto begin = static_cast<size_t>(piece.data() - text.data());
  const bool at_end = begin + piece.size() == text.size();
  if (run_ == 0 || at_end || piece.empty() || last_character(piece) == 0 || !is_space(piece)) return piece;
  // Only runs of spaces need the expression's groups. These are rare, so the groups take a second search.
  std::vector<re2::StringPiece> groups(static_cast<size_t>(run_) + 1);
  compiled_->Match(all, begin, text.size(), RE2::ANCHOR_START, groups.data(), static_cast<int>(groups.size()));
  return groups.back().data() == nullptr ? piece : piece.substr(0, last_character(piece));
}

void TextSplitter::each(std::string_view text, const Visit& visit) const {
  for (size_t at = 0; at < text.size();) {
    const std::string_view piece = match(text, at);
    if (piece.empty()) return visit(text.substr(at), false);
    const auto begin = static_cast<size_t>(piece.data() - text.data());
    if (begin > at) visit(text.substr(at, begin - at), false);
    visit(piece, true);
    at = begin + piece.size();
  }
}

}  // namespace convoy
