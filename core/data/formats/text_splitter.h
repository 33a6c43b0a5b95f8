// TextSplitter: splits text into pieces by a regular expression of a tokenizer. re2/re2.h stays in text_splitter.cpp
// and core/base/name_pattern.cpp. Without LibTorch.
//
// The expressions are those of Hugging Face tokenizers (Oniguruma syntax). RE2 has no look-ahead, so code handles the
// one that all of them use: in \s+(?!\S)|\s+ the last space of a run belongs to the next word. \s, \d and \w match
// Unicode's classes. Time is proportional to the length of the text.
// Threads: const after construction.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace re2 {
class RE2;
}

namespace convoy {

class TextSplitter {
 public:
  using Visit = std::function<void(std::string_view piece, bool matched)>;

  // Throws Error(config) naming `where` if RE2 cannot compile the expression.
  TextSplitter(const std::string& expression, const std::string& where);
  // Matches the longest of these strings; needs at least one.
  explicit TextSplitter(const std::vector<std::string>& literals);

  // Visits matches and the text between them, in order; together they are the text. Bytes that are not UTF-8 match
  // nothing.
  void each(std::string_view text, const Visit& visit) const;

 private:
  std::string_view match(std::string_view text, size_t from) const;  // empty: no match after `from`

  std::shared_ptr<const re2::RE2> compiled_;
  int run_ = 0;  // index of the group for a run of spaces; 0: none
};

// Expression of GPT-2.
extern const char gpt2_pieces[];

}  // namespace convoy
