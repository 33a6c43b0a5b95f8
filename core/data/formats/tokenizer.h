// Tokenizer: byte-level BPE as in GPT-2 and Llama 3 (Sennrich et al., "Neural machine translation of rare words with
// subword units", 2016), from the files of Hugging Face. Without LibTorch.
//
// Text → special tokens, and pieces between them (core/data/formats/text_splitter.h) → bytes → merges, in the order of
// the list. Every byte has a token, so any text can be encoded. The result equals that of the Python package
// `tokenizers` without its post-processor: a run trains on one stream of tokens and adds none at its begin.
// Threads: const after construction.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/data/formats/text_splitter.h"

namespace convoy {

class Tokenizer {
 public:
  // Reads a tokenizer.json, or a vocab.json with the merges.txt next to it. Error(config) names an unsupported kind or
  // feature. Error(corrupt_data) with file and reason; Error(io).
  static Tokenizer read(const std::string& path);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // Returns tokens by id, as written in the file, where letters stand for bytes; "" for an id without a token.
  const std::vector<std::string>& tokens() const { return tokens_; }
  // Returns names (without folder) and contents of the files that were read.
  const std::vector<std::pair<std::string, std::string>>& files() const { return files_; }
  std::string hash() const;  // hash of the files

  // Error(corrupt_data) with `path` and the offset of a byte, if the tokenizer has no token for that byte.
  std::vector<int32_t> encode(std::string_view text, const std::string& path) const;
  std::string decode(const int32_t* tokens, int64_t count) const;

 private:
  class Reader;
  class Encoder;
  struct Merge {
    int32_t rank, token;
  };

  std::vector<std::string> tokens_;
  std::vector<std::string> bytes_;  // bytes of each token
  std::vector<std::pair<std::string, std::string>> files_;
  std::array<int32_t, 256> byte_tokens_{};              // −1: none
  std::unordered_map<uint64_t, Merge> merges_;          // by left and right token
  std::unordered_map<std::string, int32_t> whole_;      // tokens by their bytes; empty unless ignore_merges
  std::unordered_map<std::string, int32_t> added_;      // special tokens by text
  std::vector<TextSplitter> added_splitters_, pieces_;  // applied one after another
  int32_t unknown_ = -1;                                // for a byte without a token
  bool prefix_space_ = false;                           // text begins with a space
};

}  // namespace convoy
