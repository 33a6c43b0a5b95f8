// BPE trainer: makes a byte-level BPE tokenizer (core/data/formats/tokenizer.h) from texts. Without LibTorch.
// `convoy vocabulary` uses it.
//
// Rule (Sennrich et al., 2016): texts are split into pieces by the expression of GPT-2. Each step merges the pair of
// neighbouring tokens that occurs most often within pieces; of equally frequent pairs the one with the smaller tokens.
// Merges and numbers equal those of the Python package `tokenizers` with its byte alphabet.
// Memory: the different pieces, not the texts. Time: linear in the texts, plus the merges.
// Threads: one.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/data/formats/text_splitter.h"

namespace convoy {

struct TrainedBpe {
  // By number: special tokens, bytes, merged tokens; bytes as printable letters.
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  // in the order of training; bytes as printable letters
  std::vector<std::string> special;
  int64_t pieces = 0;     // in the texts
  int64_t different = 0;  // different ones of these
  // Content of tokenizer.json, which Tokenizer::read and transformers take.
  std::string tokenizer_json() const;
};

class BpeTrainer {
 public:
  // `special`: tokens that the model may use as marks, such as <|endoftext|>; texts are not split at them.
  explicit BpeTrainer(std::vector<std::string> special = {});
  void add(std::string_view text);  // counts its pieces
  // The vocabulary has `size` tokens, or fewer if no pair is left that occurs at least twice. Error(config) for a size
  // below that of the bytes and the special tokens.
  TrainedBpe train(int64_t size) const;
  int64_t least_size() const;

 private:
  TextSplitter splitter_;
  std::vector<std::string> special_;
  std::unordered_map<std::string, int64_t> counts_;
  int64_t pieces_ = 0;
};

// The letters that stand for the 256 bytes in files of byte-level BPE: a printable byte stays, the others
// follow from U+0100.
const std::vector<std::string>& byte_letters();
// Content of tokenizer.json of a byte-level BPE. `use_regex`: texts are split by the expression of GPT-2.
std::string byte_level_tokenizer(const std::vector<std::pair<std::string, int64_t>>& vocabulary,
                                 const std::vector<std::pair<std::string, std::string>>& merges,
                                 const std::vector<std::string>& special, bool use_regex);

}  // namespace convoy
