#include "core/data/sets/text.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/data/formats/vocabulary.h"
#include "core/data/readers/column_cache.h"
#include "core/data/rows.h"

namespace convoy {
namespace {

at::Tensor encoded(const MappedFile& file, const Vocabulary& vocabulary, const std::string& unknown_token) {
  int64_t unknown = -1;
  if (!unknown_token.empty()) {
    unknown = vocabulary.number_of(unknown_token);
    if (unknown < 0)
      throw Error(Failure::config, "data.unknown: '", unknown_token, "' is not a token of data.vocabulary");
  }
  const auto parse = [&] {
    const std::vector<int32_t> tokens = vocabulary.encode(file.text(), unknown, file.path());
    at::Tensor column = at::empty({static_cast<int64_t>(tokens.size())}, at::kInt);
    if (!tokens.empty()) std::memcpy(column.mutable_data_ptr(), tokens.data(), tokens.size() * sizeof(int32_t));
    return Columns{{"tokens", column}};
  };
  const auto check = [&](const Columns& cached) {
    return has_column(cached, "tokens", at::kInt, {-1}) && all_below(cached.at("tokens"), vocabulary.size());
  };
  return cached_columns(file, str("text ", vocabulary.hash(), " ", unknown), parse, check).at("tokens");
}

NameList names_of(const std::string& vocabulary) {
  return vocabulary == "bytes" ? NameList() : NameList(Vocabulary::read(vocabulary).tokens());
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

TextDataset::TextDataset(const std::string& path, const Shape& shape)
    : TextDataset(path, shape, names_of(shape.vocabulary)) {}

TextDataset::TextDataset(const std::string& path, const Shape& shape, const NameList& names)
    : shape_(shape), names_(names), file_(path) {
  int64_t count = static_cast<int64_t>(file_.text().size());
  if (names.size() > 0) {
    tokens_ = encoded(file_, Vocabulary(names.strings()), shape.unknown);
    count = tokens_.numel();
  } else {
    log_mapped(path, path, count);
  }
  const int64_t sequences = (count - 1) / shape.length;
  if (count <= shape.length)
    throw Error(Failure::corrupt_data, path, ": holds ", count, " tokens; a sequence of data.length ", shape.length,
                " takes ", shape.length + 1, ", the last one being a target only");
  evaluate_ = std::llround(shape.evaluate_fraction * static_cast<double>(sequences));
  if (shape.evaluate_fraction > 0) evaluate_ = std::max<int64_t>(evaluate_, 1);
  evaluate_ = std::min(evaluate_, sequences - 1);
  train_ = sequences - evaluate_;
}

Schema TextDataset::schema() const {
  const int64_t vocabulary = names_.size() > 0 ? names_.size() : 256;
  Schema schema;
  schema.fields["tokens"] = {{shape_.length}, at::kLong, vocabulary};
  schema.fields["target"] = {{shape_.length}, at::kLong, vocabulary};
  return schema;
}

DataContents TextDataset::contents() const {
  DataContents contents{file_.fingerprint(), train_ + evaluate_, {}};
  if (names_.size() > 0) contents.lists["tokens"] = {names_, true};
  return contents;
}

DatasetPtr TextDataset::numbered_as(const DataContents& stored) const {
  return std::make_shared<TextDataset>(file_.path(), shape_, stored.lists.at("tokens").names);
}

int64_t TextDataset::size(Split split) const { return split == Split::train ? train_ : evaluate_; }

Batch TextDataset::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, BatchBuffers& buffers) const {
  const int64_t rows = indices.numel(), length = shape_.length;
  at::Tensor tokens = buffers.take("tokens", {rows, length}, at::kLong);
  at::Tensor target = buffers.take("target", {rows, length}, at::kLong);
  const int64_t offset = split == Split::train ? 0 : train_;
  const int64_t* sequences = indices.const_data_ptr<int64_t>();
  auto* to = tokens.mutable_data_ptr<int64_t>();
  auto* next = target.mutable_data_ptr<int64_t>();
  if (tokens_.defined()) {
    copy_sequences(tokens_.const_data_ptr<int32_t>(), sequences, rows, offset, length, to, next);
  } else {
    const auto* bytes = reinterpret_cast<const unsigned char*>(file_.text().data());
    copy_sequences(bytes, sequences, rows, offset, length, to, next);
  }
  return {{{"tokens", tokens}, {"target", target}}, rows};
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
