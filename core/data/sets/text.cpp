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

// Encodes the file's text, or maps the tokens of an earlier run. `how`: describes the encoding.
template <class Encode>
at::Tensor encoded(const MappedFile& file, const std::string& how, int64_t size, const Encode& encode) {
  const auto parse = [&] {
    const std::vector<int32_t> tokens = encode();
    at::Tensor column = at::empty({static_cast<int64_t>(tokens.size())}, at::kInt);
    if (!tokens.empty()) std::memcpy(column.mutable_data_ptr(), tokens.data(), tokens.size() * sizeof(int32_t));
    return Columns{{"tokens", column}};
  };
  const auto check = [&](const Columns& cached) {
    return has_column(cached, "tokens", at::kInt, {-1}) && all_below(cached.at("tokens"), size);
  };
  return cached_columns(file, how, parse, check).at("tokens");
}

at::Tensor encoded(const MappedFile& file, const Vocabulary& vocabulary, const std::string& unknown_token) {
  int64_t unknown = -1;
  if (!unknown_token.empty()) {
    unknown = vocabulary.number_of(unknown_token);
    if (unknown < 0)
      throw Error(Failure::config, "data.unknown: '", unknown_token, "' is not a token of data.vocabulary");
  }
  return encoded(file, str("text ", vocabulary.hash(), " ", unknown), vocabulary.size(),
                 [&] { return vocabulary.encode(file.text(), unknown, file.path()); });
}

at::Tensor encoded(const MappedFile& file, const Tokenizer& tokenizer) {
  return encoded(file, "text tokenizer " + tokenizer.hash(), tokenizer.size(),
                 [&] { return tokenizer.encode(file.text(), file.path()); });
}

std::shared_ptr<const Tokenizer> tokenizer_of(const TextDataset::Shape& shape) {
  return shape.tokenizer.empty() ? nullptr : std::make_shared<Tokenizer>(Tokenizer::read(shape.tokenizer));
}

NameList names_of(const TextDataset::Shape& shape, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr) return NameList(tokenizer->tokens());
  return shape.vocabulary == "bytes" ? NameList() : NameList(Vocabulary::read(shape.vocabulary).tokens());
}

}  // namespace

TextDataset::TextDataset(const std::string& path, const Shape& shape)
    : shape_(shape), tokenizer_(tokenizer_of(shape)), file_(path) {
  names_ = names_of(shape, tokenizer_.get());
  take_tokens();
}

TextDataset::TextDataset(const std::string& path, const Shape& shape, const NameList& names)
    : shape_(shape), names_(names), file_(path) {
  take_tokens();
}

void TextDataset::take_tokens() {
  const std::string& path = file_.path();
  const bool token_file = holds_tokens(shape_.format, path);
  set_vocabulary_size(token_file);
  if (token_file) {
    layout_ = read_token_file(shape_.format, path, file_.text());
  } else if (names_.size() > 0) {
    encoded_ = tokenizer_ ? encoded(file_, *tokenizer_) : encoded(file_, Vocabulary(names_.strings()), shape_.unknown);
    layout_ = {TokenType::int32, 0, encoded_.numel()};
  } else {
    layout_ = {TokenType::uint8, 0, static_cast<int64_t>(file_.text().size())};
  }
  tokens_ = encoded_.defined()
                ? std::string_view(static_cast<const char*>(encoded_.const_data_ptr()), encoded_.nbytes())
                : file_.text();
  if (!encoded_.defined()) log_mapped(path, path, static_cast<int64_t>(tokens_.size()));
  constexpr size_t checked_at_once = size_t{1} << 30;
  checked_ = !token_file || tokens_.size() <= checked_at_once;
  if (token_file && checked_) check_tokens(layout_, path, tokens_, 0, layout_.count, vocabulary_size_);

  const int64_t count = layout_.count, sequences = (count - 1) / shape_.length;
  if (count <= shape_.length)
    throw Error(Failure::corrupt_data, path, ": holds ", count, " tokens; a sequence of data.length ", shape_.length,
                " takes ", shape_.length + 1, ", the last one being a target only");
  evaluate_ = std::llround(shape_.evaluate_fraction * static_cast<double>(sequences));
  if (shape_.evaluate_fraction > 0) evaluate_ = std::max<int64_t>(evaluate_, 1);
  evaluate_ = std::min(evaluate_, sequences - 1);
  train_ = sequences - evaluate_;
}

void TextDataset::set_vocabulary_size(bool token_file) {
  const int64_t own = names_.size() > 0 ? names_.size() : token_file ? 0 : 256;
  vocabulary_size_ = shape_.vocabulary_size > 0 ? shape_.vocabulary_size : own;
  if (vocabulary_size_ == 0)
    throw Error(Failure::config, "data.vocabulary_size: is needed for a file of tokens without data.tokenizer");
  if (vocabulary_size_ < own)
    throw Error(Failure::config, "data.vocabulary_size = ", vocabulary_size_, " conflicts with ", own, " known tokens");
}

Schema TextDataset::schema() const {
  Schema schema;
  schema.fields["tokens"] = {{shape_.length}, at::kLong, vocabulary_size_};
  schema.fields["target"] = {{shape_.length}, at::kLong, vocabulary_size_};
  return schema;
}

DataContents TextDataset::contents() const {
  std::vector<std::string> parts{file_.fingerprint()};
  if (tokenizer_) parts.push_back(tokenizer_->hash());
  // Equal bytes are other tokens then.
  if (shape_.format == "uint16" || shape_.format == "uint32") parts.push_back(shape_.format);
  DataContents contents{parts.size() == 1 ? parts[0] : combined_fingerprint(parts), train_ + evaluate_, {}};
  if (names_.size() > 0) contents.lists["tokens"] = {names_, true};
  if (!tokenizer_) return contents;
  std::vector<std::string_view> files;
  for (const auto& [name, text] : tokenizer_->files()) files.insert(files.end(), {name, text});
  contents.lists["tokenizer"] = {NameList(files), true};
  return contents;
}

DatasetPtr TextDataset::numbered_as(const DataContents& stored) const {
  if (tokenizer_) return nullptr;  // merges decide the numbers too
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
  for (int64_t r = 0; r < rows; ++r, to += length, next += length) {
    const int64_t first = (offset + sequences[r]) * length;
    if (!checked_) check_tokens(layout_, file_.path(), tokens_, first, length + 1, vocabulary_size_);
    copy_tokens(layout_, tokens_, first, length, to);
    std::copy(to + 1, to + length, next);
    copy_tokens(layout_, tokens_, first + length, 1, next + length - 1);
  }
  return {{{"tokens", tokens}, {"target", target}}, rows};
}

DatasetPtr make_text(const Options& options, uint64_t /*seed*/) {
  TextDataset::Shape shape;
  shape.format = options.text("format");
  if (options.has("tokenizer")) shape.tokenizer = options.text("tokenizer");
  shape.vocabulary = options.text("vocabulary");
  if (options.has("vocabulary_size")) shape.vocabulary_size = options.integer("vocabulary_size");
  if (options.has("unknown") && shape.vocabulary != "bytes") shape.unknown = options.text("unknown");
  shape.length = options.integer("length");
  shape.evaluate_fraction = options.section("evaluate").real("fraction");
  return std::make_shared<TextDataset>(options.text("path"), shape);
}

}  // namespace convoy
