// Text: sequences by their position in a file, memory-mapped; nothing of it is copied before it is gathered.
//
// Sequence i of length T reads tokens i·T … i·T + T − 1 and has those one further as targets, so that an epoch has every
// token as a target once; what is left at the end, less than a sequence, is not used. Evaluation takes the file's end.
// With a vocabulary's file the tokens are kept beside the text (core/data/column_cache.h) and mapped from there.
// Batch tensors: tokens [B, T] int64 · target [B, T] int64.
#pragma once
#include <optional>
#include <string>

#include "core/data/dataset.h"
#include "core/data/mapped_file.h"
#include "core/options.h"

namespace convoy {

class TextDataset : public Dataset {
 public:
  struct Shape {
    std::string vocabulary = "bytes";  // or a file
    std::string unknown;               // token; "": an unknown byte is an error
    int64_t length = 128;
    double evaluate_fraction = 0.1;
  };
  // Error(io), Error(corrupt_data) with the file and what is wrong where; Error(config) for an `unknown` that is no token.
  TextDataset(const std::string& path, const Shape& shape);
  // With the tokens of `names` in place of the vocabulary's file.
  TextDataset(const std::string& path, const Shape& shape, const NameList& names);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  int64_t tokens_per_row() const override { return shape_.length; }
  DataContents contents() const override;
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override;

 private:
  const Shape shape_;
  NameList names_;  // the vocabulary's tokens; none for bytes
  MappedFile file_;
  at::Tensor tokens_;  // int32 [N], where a vocabulary made them; else the file's bytes are the tokens
  int64_t train_ = 0, evaluate_ = 0;
};

DatasetPtr make_text(const Options& options, uint64_t seed);

}  // namespace convoy
