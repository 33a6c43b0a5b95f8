// Text: sequences by their position in a memory-mapped file of text or of tokens. Nothing is copied before a gather.
//
// Sequence i of length T reads tokens i·T … i·T + T − 1; its targets are the tokens one position later. So every token
// is a target once per epoch. The last tokens, fewer than a sequence, are not used. Evaluation uses the end of the
// file. With a vocabulary file or a tokenizer, the tokens are cached next to the text
// (core/data/readers/column_cache.h) and mapped. Token files are checked at the start; those above 1 GiB are checked
// when gathered.
// Batch tensors: tokens [B, T] int64 · target [B, T] int64.
#pragma once
#include <optional>
#include <string>

#include "core/base/options.h"
#include "core/data/dataset.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/token_file.h"
#include "core/data/formats/tokenizer.h"

namespace convoy {

class TextDataset : public Dataset {
 public:
  struct Shape {
    std::string format = "auto";       // text, npy, uint16, uint32; auto: by the file's name
    std::string tokenizer;             // tokenizer.json or vocab.json; "": none
    std::string vocabulary = "bytes";  // or a file
    std::string unknown;               // token; "": an unknown byte is an error
    int64_t vocabulary_size = 0;       // 0: size of the vocabulary or the tokenizer
    int64_t length = 128;
    double evaluate_fraction = 0.1;
  };
  // Error(io); Error(corrupt_data) with file, reason and position; Error(config) if `unknown` is not a token, or if
  // vocabulary_size is missing or too small.
  TextDataset(const std::string& path, const Shape& shape);
  // Uses the tokens of `names` instead of those of the vocabulary file.
  TextDataset(const std::string& path, const Shape& shape, const NameList& names);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  int64_t tokens_per_row() const override { return shape_.length; }
  DataContents contents() const override;
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

 private:
  const Shape shape_;
  void take_tokens();
  void set_vocabulary_size(bool token_file);

  NameList names_;  // tokens of the vocabulary or the tokenizer; none for bytes
  std::shared_ptr<const Tokenizer> tokenizer_;
  MappedFile file_;
  at::Tensor encoded_;       // int32 [N] if the file's text was encoded
  std::string_view tokens_;  // memory of encoded_, or the file
  TokenFile layout_;         // layout of tokens_
  int64_t vocabulary_size_ = 0;
  bool checked_ = true;  // all tokens are below vocabulary_size_
  int64_t train_ = 0, evaluate_ = 0;
};

DatasetPtr make_text(const Options& options, uint64_t seed);

}  // namespace convoy
