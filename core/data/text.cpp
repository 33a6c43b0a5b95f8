#include "core/data/text.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/data/column_cache.h"
#include "core/data/vocabulary.h"
#include "core/error.h"

namespace convoy {
namespace {

at::Tensor encoded(const MappedFile& file, const Vocabulary& vocabulary, const std::string& unknown_token) {
  int64_t unknown = -1;
  if (!unknown_token.empty()) {
    unknown = vocabulary.number_of(unknown_token);
    if (unknown < 0)
      throw Error(Failure::config, str("data.unknown: '", unknown_token, "' is no token of data.vocabulary"));
  }
  const auto parse = [&] {
    const std::vector<int32_t> tokens = vocabulary.encode(file.text(), unknown, file.path());
    at::Tensor column = at::empty({static_cast<int64_t>(tokens.size())}, at::kInt);
    if (!tokens.empty()) std::memcpy(column.mutable_data_ptr(), tokens.data(), tokens.size() * sizeof(int32_t));
    return Columns{{"tokens", column}};
  };
  return cached_columns(file, str("text ", vocabulary.hash(), " ", unknown), parse).at("tokens");
}

template <class Token>
void copy_sequences(const Token* all, const int64_t* sequences, int64_t rows, int64_t offset, int64_t length,
                    int64_t* tokens, int64_t* target) {
  for (int64_t r = 0; r < rows; ++r, tokens += length, target += length) {
    const Token* from = all + (offset + sequences[r]) * length;
    std::copy(from, from + length, tokens);
    std::copy(from + 1, from + length + 1, target);
  }
}

}  // namespace

TextDataset::TextDataset(const std::string& path, const Shape& shape) : length_(shape.length), file_(path) {
  int64_t count = static_cast<int64_t>(file_.text().size());
  if (shape.vocabulary != "bytes") {
    const Vocabulary vocabulary = Vocabulary::read(shape.vocabulary);
    vocabulary_ = vocabulary.size();
    tokens_ = encoded(file_, vocabulary, shape.unknown);
    count = tokens_.numel();
  }
  const int64_t sequences = (count - 1) / length_;
  if (count <= length_)
    throw Error(Failure::corrupt_data, str(path, ": holds ", count, " tokens; a sequence of data.length ", length_,
                                           " takes ", length_ + 1, ", the last one being a target only"));
  evaluate_ = std::llround(shape.evaluate_fraction * static_cast<double>(sequences));
  if (shape.evaluate_fraction > 0) evaluate_ = std::max<int64_t>(evaluate_, 1);
  evaluate_ = std::min(evaluate_, sequences - 1);
  train_ = sequences - evaluate_;
}

Schema TextDataset::schema() const {
  Schema schema;
  schema.fields["tokens"] = {{length_}, at::kLong, vocabulary_};
  schema.fields["target"] = {{length_}, at::kLong, vocabulary_};
  return schema;
}

int64_t TextDataset::size(Split split) const { return split == Split::train ? train_ : evaluate_; }

Batch TextDataset::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, Buffers& buffers) const {
  const int64_t rows = indices.numel();
  at::Tensor tokens = buffers.take("tokens", {rows, length_}, at::kLong);
  at::Tensor target = buffers.take("target", {rows, length_}, at::kLong);
  const int64_t offset = split == Split::train ? 0 : train_;
  const int64_t* sequences = indices.const_data_ptr<int64_t>();
  auto* to = tokens.mutable_data_ptr<int64_t>();
  auto* next = target.mutable_data_ptr<int64_t>();
  if (tokens_.defined()) {
    copy_sequences(tokens_.const_data_ptr<int32_t>(), sequences, rows, offset, length_, to, next);
  } else {
    const auto* bytes = reinterpret_cast<const unsigned char*>(file_.text().data());
    copy_sequences(bytes, sequences, rows, offset, length_, to, next);
  }
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"tokens", tokens}, {"target", target}};
  return batch;
}

DatasetPtr make_text(const Options& options, uint64_t /*seed*/) {
  TextDataset::Shape shape;
  shape.vocabulary = options.text("vocabulary");
  if (options.has("unknown") && shape.vocabulary != "bytes") shape.unknown = options.text("unknown");
  shape.length = options.integer("length");
  shape.evaluate_fraction = options.section("evaluate").real("fraction");
  return std::make_shared<TextDataset>(options.text("path"), shape);
}

}  // namespace convoy
