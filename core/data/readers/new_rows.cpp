#include "core/data/readers/new_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/base/error.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/data/preparation.h"
#include "core/data/readers/row_parser.h"
#include "core/data/readers/table_reader.h"
#include "core/tensors/safetensors.h"

namespace convoy {

// --- New rows from arrays: .npy, .safetensors, and tensors of a program ---

namespace {

class ArrayRows : public NewRows {
 public:
  ArrayRows(std::string name, NamedTensors tensors, const TrainedData& trained, const NewRowsOptions& options)
      : name_(std::move(name)), options_(options), trained_(trained) {
    numbered_ = options.skip_unknown;
    choose(std::move(tensors));
    for (auto& [field, tensor] : fields_) check_shape(field, tensor);
  }

  int64_t rows() const override { return fields_.front().second.size(0); }

  bool next(RowBlock& block) override {
    const int64_t count = std::min(options_.block, rows() - done_);
    if (count <= 0) return false;
    std::vector<at::Tensor> parts;
    at::Tensor unknown = at::zeros({count}, at::TensorOptions(at::kBool));
    for (const auto& [name, tensor] : fields_) {
      parts.push_back(tensor.narrow(0, done_, count));
      unknown.logical_or_(unknown_rows(name, parts.back()));
    }
    const at::Tensor kept = unknown.logical_not().nonzero().flatten();
    Batch batch;
    batch.rows = batch.global_rows = batch.nominal_rows = kept.numel();
    for (size_t i = 0; i < fields_.size(); ++i) {
      const at::Tensor part = kept.numel() < count ? parts[i].index_select(0, kept) : parts[i];
      batch.tensors.emplace_back(fields_[i].first, prepared(fields_[i].first, part));
    }
    add_stored(batch);
    block.numbers.clear();
    if (numbered_)
      for (int64_t i = 0; i < kept.numel(); ++i) block.numbers.push_back(done_ + kept[i].item<int64_t>());
    block.batch = std::move(batch);
    block.lines.clear();
    block.read = count;
    skipped_ += count - kept.numel();
    done_ += count;
    return true;
  }

 private:
  // Chooses the tensors of the model's fields. Fields of users and items that the checkpoint stores may be missing.
  void choose(NamedTensors tensors) {
    const Options& data = trained_.data.options;
    const bool renamed = trained_.data.name == "table" && !data.texts("features").empty();
    std::vector<std::string> given, ignored, missing, wanted;
    for (const auto& [name, field] : trained_.schema.fields)
      if (name != "target" && name != "weight") wanted.push_back(name);
    for (auto& [name, tensor] : tensors) {
      const std::string field = renamed && name == data.texts("features").front() ? "features" : name;
      given.push_back(name);
      if (std::find(wanted.begin(), wanted.end(), field) != wanted.end())
        fields_.emplace_back(field, std::move(tensor));
      else
        ignored.push_back(name);
    }
    for (const std::string& name : wanted) {
      preparations_[name] = trained_.preparation(name, {});
      if (preparations_[name].columns().empty()) preparations_[name] = Preparation();
      if (std::any_of(fields_.begin(), fields_.end(), [&](const auto& field) { return field.first == name; })) continue;
      const std::string entity = name == "user_features" ? "user" : name == "item_features" ? "item" : "";
      if (!entity.empty()) stored_[entity] = stored_features(trained_, entity);
      if (entity.empty() || !stored_[entity].defined()) missing.push_back(name);
    }
    if (fields_.empty() || !missing.empty())
      throw Error(Failure::corrupt_data, name_, ": has no tensor ", join(missing, ", "), "; the model was trained on ",
                  join(wanted, ", "), ", and it has ", join(given, ", "));
    if (!ignored.empty())
      notes_.push_back(str("tensors that the model does not read are ignored: ", join(ignored, ", ")));
  }

  // True for `item` of interactions: new rows may have any number of items.
  bool is_any_number_of_items(const std::string& name) const {
    return trained_.data.name == "interactions" && name == "item" &&
           trained_.schema.at(name, "convoy predict").shape.size() == 1;
  }

  void check_shape(const std::string& name, at::Tensor& tensor) const {
    std::vector<int64_t> wanted = trained_.schema.at(name, "convoy predict").shape;
    const Preparation& preparation = preparations_.at(name);
    if (!preparation.is_identity()) wanted.back() = preparation.raw_width();
    if (is_any_number_of_items(name)) {
      if (tensor.dim() == 1) tensor = tensor.unsqueeze(1);
      if (tensor.dim() == 2) wanted = {tensor.size(1)};
    }
    if (tensor.dim() == 0 || tensor.sizes().slice(1) != at::IntArrayRef(wanted))
      throw Error(Failure::corrupt_data, name_, ": rows of ", name, " have the shape ",
                  tensor.dim() == 0 ? at::IntArrayRef() : tensor.sizes().slice(1), ", and the model was trained on ",
                  at::IntArrayRef(wanted));
    if (tensor.size(0) != rows())
      throw Error(Failure::corrupt_data, name_, ": has ", tensor.size(0), " rows of ", name, " and ", rows(), " of ",
                  fields_.front().first);
  }

  at::Tensor prepared(const std::string& name, const at::Tensor& part) const {
    const Preparation& preparation = preparations_.at(name);
    if (!preparation.is_identity()) {
      const at::Tensor raw = part.to(at::kFloat).contiguous();
      const at::Tensor flat = preparation.applied(raw.view({-1, preparation.raw_width()}));
      std::vector<int64_t> shape = raw.sizes().vec();
      shape.back() = preparation.width();
      return flat.view(shape);
    }
    return part.scalar_type() == at::kByte ? part.clone()
                                           : part.to(trained_.schema.at(name, "convoy predict").dtype).contiguous();
  }

  // Adds the features of users and items that the checkpoint stores, and the target.
  void add_stored(Batch& batch) const {
    std::vector<int64_t> target = trained_.schema.at("target", "convoy predict").shape;
    if (const at::Tensor* item = batch.find("item"); item != nullptr && is_any_number_of_items("item")) {
      target = {item->size(1)};
      if (const auto found = stored_.find("item"); found != stored_.end())
        batch.tensors.emplace_back(
            "item_features",
            found->second.index_select(0, item->flatten()).view({item->size(0), item->size(1), found->second.size(1)}));
    }
    if (const auto found = stored_.find("user"); found != stored_.end())
      batch.tensors.emplace_back("user_features", found->second.index_select(0, batch.at("user")));
    batch.tensors.emplace_back("target", trained_.zero_target(batch.rows, target));
  }

  // --- Checks of ids, categories and numbers: an id out of the model's range would read other memory ---

  // True for rows of `part`, the block from `done_` on, with an unknown id or category. Throws for other values, and
  // for unknown ones too unless they are left out.
  at::Tensor unknown_rows(const std::string& name, const at::Tensor& part) const {
    const Field& field = trained_.schema.at(name, "convoy predict");
    const std::vector<PreparedColumn>& columns = preparations_.at(name).columns();
    const bool whole = !at::isFloatingType(field.dtype) && field.dtype != at::kByte;
    if (part.scalar_type() == at::kByte && !whole && columns.empty())
      return at::zeros({part.size(0)}, at::TensorOptions(at::kBool));
    const at::Tensor values = part.to(at::kDouble).reshape({part.size(0), -1});
    at::Tensor wrong = values.isfinite().logical_not();
    at::Tensor unknown = at::zeros_like(wrong);
    const auto check_number = [&](const at::Tensor& some, int64_t count, at::Tensor some_wrong,
                                  at::Tensor some_unknown) {
      some_wrong.logical_or_(some.floor().ne(some));
      some_unknown.logical_or_(some.lt(0));
      if (count > 0) some_unknown.logical_or_(some.ge(double(count)));
    };
    if (whole) check_number(values, field.cardinality, wrong, unknown);
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto column = int64_t(i);
      if (columns[i].categorical)
        check_number(values.select(1, column), int64_t(columns[i].categories.size()), wrong.select(1, column),
                     unknown.select(1, column));
      else if (columns[i].fills)
        wrong.select(1, column).logical_and_(values.select(1, column).isnan().logical_not());
    }
    if (wrong.any().item<bool>())
      refuse(name, values, wrong,
             whole ? "is no whole number" : "is not finite, or no whole number where training had categories", "");
    if (!options_.skip_unknown && unknown.any().item<bool>())
      refuse(name, values, unknown,
             whole ? str("is no number of an id or token from 0 to ", field.cardinality - 1)
                   : "is no number of a category that was seen in training",
             "; leave its row out, or type --unknown skip");
    return unknown.any(1);
  }

  [[noreturn]] void refuse(const std::string& name, const at::Tensor& values, const at::Tensor& wrong,
                           const std::string& reason, const std::string& advice) const {
    const at::Tensor index = wrong.nonzero()[0];
    const int64_t row = index[0].item<int64_t>(), column = index[1].item<int64_t>();
    throw Error(Failure::corrupt_data, name_, ": ", name, ", row ", done_ + row, ", value ", column, ": is ",
                values[row][column].item<double>(), ", which ", reason, advice);
  }

  const std::string name_;
  const NewRowsOptions options_;
  const TrainedData trained_;
  NamedTensors fields_;
  std::map<std::string, Preparation> preparations_;  // by field
  std::map<std::string, at::Tensor> stored_;         // features of each "user" and "item", where no tensor has them
  int64_t done_ = 0;
};

}  // namespace

std::unique_ptr<NewRows> new_array_rows(NamedTensors tensors, const std::string& name, const TrainedData& trained,
                                        const NewRowsOptions& options) {
  return std::make_unique<ArrayRows>(name, std::move(tensors), trained, options);
}

namespace {

// The part for .npy and .safetensors.
std::unique_ptr<NewRows> open_new_arrays(const std::string& path, const TrainedData& trained,
                                         const NewRowsOptions& options) {
  NamedTensors tensors;
  if (ends_in(path, ".npy")) {
    tensors.emplace_back("features", read_npy(path));
  } else {
    const SafetensorsFile file(path);
    for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  }
  return new_array_rows(std::move(tensors), path, trained, options);
}

}  // namespace

// --- TrainedData ---

at::Tensor TrainedData::zero_target(int64_t rows, std::vector<int64_t> shape) const {
  const Field& target = schema.at("target", "convoy predict");
  shape.insert(shape.begin(), rows);
  return at::zeros(shape, target.dtype);
}

NameList TrainedData::list(const std::string& name) const {
  if (contents == nullptr) return {};
  const auto found = contents->lists.find(name);
  return found == contents->lists.end() ? NameList() : found->second.names;
}

Preparation TrainedData::preparation(const std::string& field, const std::vector<std::string>& names) const {
  if (contents != nullptr) {
    const Preparations all = preparations_of(*contents);
    if (const auto found = all.find(field); found != all.end()) return found->second;
  }
  std::vector<PreparedColumn> columns;
  for (const std::string& name : names) {
    PreparedColumn column;
    column.name = name;
    columns.push_back(column);
  }
  return Preparation(std::move(columns));
}

// --- New rows from text, and the choice between text and arrays ---

namespace {

class TextRows : public NewRows {
 public:
  TextRows(const MappedFile& file, const TrainedData& trained, const NewRowsOptions& options)
      : options_(options), path_(file.path()), file_(file), text_(file_->text()) {
    open(trained);
  }
  TextRows(std::string text, const std::string& name, const TrainedData& trained, const NewRowsOptions& options)
      : options_(options), path_(name), own_(std::move(text)), text_(own_) {
    open(trained);
  }

  int64_t rows() const override { return rows_; }

  bool next(RowBlock& block) override {
    const size_t begin = size_t(rest_.data() - text_.data());
    if (file_) file_->forget(forgotten_, begin);  // the lines of the block before are no longer needed
    forgotten_ = begin;
    std::vector<Piece> pieces = next_pieces();
    if (pieces.empty()) return false;
    int64_t lines = 0;
    for (Piece& piece : pieces) {
      piece.first_row = lines;
      lines += piece.lines;
    }
    Batch batch = parser_->make_batch(lines);
    at::parallel_for(0, int64_t(pieces.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) parse(pieces[size_t(i)], batch);
    });
    block.read = 0;
    block.lines.clear();
    std::vector<int64_t> kept;
    for (Piece& piece : pieces) {
      block.read += piece.read;
      skipped_ += piece.read - int64_t(piece.kept.size());
      kept.insert(kept.end(), piece.kept.begin(), piece.kept.end());
      block.lines.insert(block.lines.end(), piece.texts.begin(), piece.texts.end());
    }
    if (int64_t(kept.size()) < lines) {
      const at::Tensor rows = at::empty({int64_t(kept.size())}, at::kLong);
      std::copy(kept.begin(), kept.end(), rows.mutable_data_ptr<int64_t>());
      for (auto& [name, tensor] : batch.tensors) tensor = tensor.index_select(0, rows);
    }
    batch.rows = int64_t(kept.size());
    batch.global_rows = batch.nominal_rows = batch.rows;
    parser_->finish(batch);
    block.batch = std::move(batch);
    return true;
  }

 private:
  void open(const TrainedData& trained) {
    const Options& data = trained.data.options;
    const bool interactions = trained.data.name == "interactions";
    TextFormat form;
    if (interactions) {
      form = TextFormat::from(data, path_, {".inter"});
    } else {
      form.delimiter = delimiter_of(data);
      form.header = data.boolean("header");
    }
    delimiter_ = form.delimiter;
    typed_ = form.typed_header;
    DelimitedReader reader(path_, text_, form.delimiter);
    const Header header(reader, form.typed_header, form.header);
    fields_ = reader.columns();
    rest_ = form.header ? reader.rest() : text_;
    rest_ = rest_.substr(0, rest_.find_last_not_of("\r\n") + 1);  // blank lines are allowed at the end
    line_ = form.header ? 1 : 0;
    if (form.header) {
      header_ = line_text(text_);
      names_ = header.names();
    }
    parser_ = interactions ? interaction_parser(header, trained) : table_parser(header, trained);
    rows_ = count_lines();
  }

  struct Piece {
    std::string_view text;
    int64_t first_line = 0;  // before it
    int64_t lines = 0;
    int64_t first_row = 0;  // in the block
    int64_t read = 0;
    std::vector<int64_t> kept;  // rows of the block
    std::vector<std::string_view> texts;
  };

  static std::string_view line_text(std::string_view text) {
    std::string_view line = text.substr(0, text.find('\n'));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
    return line;
  }

  // Counts the lines of `rest_`, and keeps only a part of the file in memory.
  int64_t count_lines() const {
    constexpr size_t part = 16 << 20;
    const size_t begin = size_t(rest_.data() - text_.data());
    int64_t ends = 0;
    for (size_t at = 0; at < rest_.size(); at += part) {
      const std::string_view some = rest_.substr(at, part);
      ends += std::count(some.begin(), some.end(), '\n');
      if (file_) file_->forget(begin + at, begin + at + some.size());
    }
    return ends + (rest_.empty() ? 0 : 1);  // `rest_` ends without a line break
  }

  // The next lines of the file, in pieces of whole lines for several threads.
  std::vector<Piece> next_pieces() {
    const int64_t threads = std::max(1, at::get_num_threads());
    const int64_t each = std::max<int64_t>(1, options_.block / threads);
    std::vector<Piece> pieces;
    while (int64_t(pieces.size()) < threads && !rest_.empty()) {
      Piece piece;
      piece.first_line = line_;
      const char* at = rest_.data();
      const char* const end = at + rest_.size();
      while (piece.lines < each && at != end) {
        const void* newline = std::memchr(at, '\n', size_t(end - at));
        at = newline == nullptr ? end : static_cast<const char*>(newline) + 1;
        ++piece.lines;
      }
      piece.text = rest_.substr(0, size_t(at - rest_.data()));
      rest_.remove_prefix(piece.text.size());
      line_ += piece.lines;
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  void parse(Piece& piece, Batch& batch) const {
    DelimitedReader reader(path_, piece.text, delimiter_);
    reader.continue_from(piece.first_line, fields_);
    std::vector<float> scratch(size_t(parser_->scratch()));
    while (reader.next()) {
      const int64_t row = piece.first_row + piece.read++;
      const std::optional<UnknownValue> unknown = parser_->parse(reader, row, batch, scratch.data());
      if (!unknown) {
        piece.kept.push_back(row);
        piece.texts.push_back(reader.text());
      } else if (!options_.skip_unknown) {
        reader.fail(unknown->column, str(unknown->reason, "; leave its rows out, or type --unknown skip"));
      }
    }
    if (piece.read < piece.lines)
      throw Error(Failure::corrupt_data, path_, ":", piece.first_line + piece.read + 1,
                  ":1: a blank line between rows");
  }

  // Finds columns of the file; reports all that are missing at once.
  class ColumnFinder {
   public:
    ColumnFinder(const std::string& path, const std::vector<std::string>& names) : path_(path), names_(names) {}
    size_t find(const std::string& name) {
      wanted_.push_back(name);
      const auto found = std::find(names_.begin(), names_.end(), name);
      if (found == names_.end()) missing_.push_back(name);
      found_.push_back(found - names_.begin());
      return size_t(found - names_.begin());
    }
    // Throws if a column is missing; adds notes about others.
    void finish(std::vector<std::string>& notes) const {
      if (!missing_.empty()) {
        const std::string near = nearest(missing_.front(), names_);
        throw Error(Failure::corrupt_data, path_, ":1: has no column ", join(missing_, ", "),
                    ", which the model was trained on; it has ", join(names_, ", "),
                    near.empty() ? std::string() : str("; is ", near, " meant to be ", missing_.front(), "?"));
      }
      std::vector<std::string> others;
      for (const std::string& name : names_)
        if (std::find(wanted_.begin(), wanted_.end(), name) == wanted_.end()) others.push_back(name);
      if (!others.empty())
        notes.push_back(str("columns that the model does not read are copied: ", join(others, ", ")));
      if (!std::is_sorted(found_.begin(), found_.end()))
        notes.push_back(
            str("columns are in another order than in training and are found by name: ", join(wanted_, ", ")));
    }

   private:
    const std::string path_;
    const std::vector<std::string>& names_;
    std::vector<std::string> wanted_, missing_;
    std::vector<std::ptrdiff_t> found_;
  };

  std::unique_ptr<RowParser> table_parser(const Header& header, const TrainedData& trained) {
    const std::vector<std::string> names = trained.list("columns").strings();
    if (names.empty())
      throw Error(Failure::config, path_,
                  ": is text, and the run was trained on arrays without names of "
                  "columns; give an .npy or a .safetensors file");
    ColumnFinder finder(path_, header.names());
    std::vector<size_t> columns;
    for (const std::string& name : names) columns.push_back(finder.find(name));
    finder.finish(notes_);
    return table_row_parser(trained, std::move(columns));
  }

  std::unique_ptr<RowParser> interaction_parser(const Header& header, const TrainedData& trained) {
    const Options named = trained.data.options.section("columns");
    ColumnFinder finder(path_, header.names());
    PairColumns columns;
    columns.user = finder.find(named.text("user"));
    columns.item = finder.find(named.text("item"));
    for (const std::string& name : trained.list("context_columns").strings())
      columns.context.push_back(finder.find(name));
    finder.finish(notes_);
    return interaction_row_parser(trained, columns);
  }

  const NewRowsOptions options_;
  const std::string path_;
  const std::optional<MappedFile> file_;  // or the text in memory
  const std::string own_;
  const std::string_view text_;
  std::unique_ptr<RowParser> parser_;
  size_t fields_ = 0;
  std::string_view rest_;  // text that is not read yet
  int64_t line_ = 0;       // lines before it
  size_t forgotten_ = 0;   // bytes whose memory was given back
  int64_t rows_ = 0;
};

void check_text_data(const std::string& name, const TrainedData& trained) {
  if (trained.data.name != "table" && trained.data.name != "interactions")
    throw Error(Failure::config, name, ": the run's data set is ", trained.data.name,
                "; rows of text are for table and interactions, so give an .npy or a .safetensors file");
}

}  // namespace

std::unique_ptr<NewRows> open_new_rows(const std::string& path, const TrainedData& trained,
                                       const NewRowsOptions& options) {
  if (ends_in(path, ".npy") || ends_in(path, ".safetensors")) return open_new_arrays(path, trained, options);
  check_text_data(path, trained);
  return std::make_unique<TextRows>(MappedFile(path), trained, options);
}

std::unique_ptr<NewRows> new_text_rows(std::string text, const std::string& name, const TrainedData& trained,
                                       const NewRowsOptions& options) {
  check_text_data(name, trained);
  return std::make_unique<TextRows>(std::move(text), name, trained, options);
}

}  // namespace convoy
