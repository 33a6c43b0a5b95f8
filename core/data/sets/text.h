// Text: sequences by their position in a memory-mapped file; nothing is copied before it is gathered.
//
// Sequence i of length T reads tokens i·T … i·T + T − 1; its targets are the tokens one position later. So an epoch has
// every token as a target once. Remaining tokens, fewer than a sequence, are not used. Evaluation uses the end of the
// file. With a vocabulary file, the tokens are cached next to the text (core/data/readers/column_cache.h) and mapped.
// Batch tensors: tokens [B, T] int64 · target [B, T] int64.
#pragma once
#include <optional>
#include <string>

#include "core/base/options.h"
#include "core/data/dataset.h"
#include "core/data/formats/mapped_file.h"

namespace convoy {

class TextDataset : public Dataset {
 public:
  struct Shape {
    std::string vocabulary = "bytes";  // or a file
    std::string unknown;               // token; "": an unknown byte is an error
    int64_t length = 128;
    double evaluate_fraction = 0.1;
  };
  // Error(io); Error(corrupt_data) with file, reason and position; Error(config) if `unknown` is not a token.
  TextDataset(const std::string& path, const Shape& shape);
  // Uses the tokens of `names` instead of the vocabulary file.
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
  NameList names_;  // the vocabulary's tokens; none for bytes
  MappedFile file_;
  at::Tensor tokens_;  // int32 [N] if there is a vocabulary; else the file's bytes are the tokens
  int64_t train_ = 0, evaluate_ = 0;
};

DatasetPtr make_text(const Options& options, uint64_t seed);

}  // namespace convoy
