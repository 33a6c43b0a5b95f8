#include "core/data/readers/new_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/data/preparation.h"
#include "core/data/readers/row_parser.h"
#include "core/data/readers/table_reader.h"

namespace convoy {

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

namespace {

class TextRows : public NewRows {
 public:
  TextRows(const std::string& path, const TrainedData& trained, const NewRowsOptions& options)
      : options_(options), file_(path) {
    const Options& data = trained.data.options;
    const bool interactions = trained.data.name == "interactions";
    TextFormat form;
    if (interactions) {
      form = TextFormat::from(data, path, {".inter"});
    } else {
      form.delimiter = delimiter_of(data);
      form.header = data.boolean("header");
    }
    delimiter_ = form.delimiter;
    typed_ = form.typed_header;
    DelimitedReader reader(path, file_.text(), form.delimiter);
    const Header header(reader, form.typed_header, form.header);
    fields_ = reader.columns();
    rest_ = form.header ? reader.rest() : file_.text();
    rest_ = rest_.substr(0, rest_.find_last_not_of("\r\n") + 1);  // blank lines are allowed at the end
    line_ = form.header ? 1 : 0;
    if (form.header) {
      header_ = line_text(file_.text());
      names_ = header.names();
    }
    parser_ = interactions ? interaction_parser(header, trained) : table_parser(header, trained);
    rows_ = count_lines();
  }

  int64_t rows() const override { return rows_; }

  bool next(RowBlock& block) override {
    const size_t begin = size_t(rest_.data() - file_.text().data());
    file_.forget(forgotten_, begin);  // the lines of the block before are no longer needed
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
    const size_t begin = size_t(rest_.data() - file_.text().data());
    int64_t ends = 0;
    for (size_t at = 0; at < rest_.size(); at += part) {
      const std::string_view some = rest_.substr(at, part);
      ends += std::count(some.begin(), some.end(), '\n');
      file_.forget(begin + at, begin + at + some.size());
    }
    return ends + (rest_.empty() ? 0 : 1);  // the last line has no end
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
    DelimitedReader reader(file_.path(), piece.text, delimiter_);
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
      throw Error(Failure::corrupt_data, file_.path(), ":", piece.first_line + piece.read + 1,
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
      throw Error(Failure::config, file_.path(),
                  ": is text, and the run was trained on arrays without names of "
                  "columns; give an .npy or a .safetensors file");
    ColumnFinder finder(file_.path(), header.names());
    std::vector<size_t> columns;
    for (const std::string& name : names) columns.push_back(finder.find(name));
    finder.finish(notes_);
    return table_row_parser(trained, std::move(columns));
  }

  std::unique_ptr<RowParser> interaction_parser(const Header& header, const TrainedData& trained) {
    const Options named = trained.data.options.section("columns");
    ColumnFinder finder(file_.path(), header.names());
    PairColumns columns;
    columns.user = finder.find(named.text("user"));
    columns.item = finder.find(named.text("item"));
    for (const std::string& name : trained.list("context_columns").strings())
      columns.context.push_back(finder.find(name));
    finder.finish(notes_);
    return interaction_row_parser(trained, columns);
  }

  const NewRowsOptions options_;
  const MappedFile file_;
  std::unique_ptr<RowParser> parser_;
  size_t fields_ = 0;
  std::string_view rest_;  // text that is not read yet
  int64_t line_ = 0;       // lines before it
  size_t forgotten_ = 0;   // bytes whose memory was given back
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<NewRows> open_new_rows(const std::string& path, const TrainedData& trained,
                                       const NewRowsOptions& options) {
  if (ends_in(path, ".npy") || ends_in(path, ".safetensors")) return open_new_arrays(path, trained, options);
  if (trained.data.name != "table" && trained.data.name != "interactions")
    throw Error(Failure::config, path, ": the run's data set is ", trained.data.name,
                "; rows of text are for table and interactions, so give an .npy or a .safetensors file");
  return std::make_unique<TextRows>(path, trained, options);
}

// New rows from arrays: .npy and .safetensors.

namespace {

class ArrayRows : public NewRows {
 public:
  ArrayRows(const std::string& path, const TrainedData& trained, const NewRowsOptions& options)
      : path_(path), options_(options), trained_(trained), schema_(trained.schema) {
    if (ends_in(path, ".npy")) {
      fields_.emplace_back("features", read_npy(path));
    } else {
      file_.emplace(path);
      const Options& data = trained.data.options;
      const bool renamed = trained.data.name == "table" && !data.texts("features").empty();
      for (const std::string& name : file_->names()) {
        const std::string field = renamed && name == data.texts("features").front() ? "features" : name;
        if (schema_.fields.count(field) != 0 && field != "target") fields_.emplace_back(field, file_->tensor(name));
      }
      if (fields_.empty())
        throw Error(Failure::corrupt_data, path, ": has no tensor of the fields that the model was trained on (",
                    join(field_names(), ", "), "); it has ", join(file_->names(), ", "));
    }
    preparation_ = trained.preparation("features", {});
    if (preparation_.columns().empty()) preparation_ = Preparation();
    for (const std::string& name : field_names())
      if (std::none_of(fields_.begin(), fields_.end(), [&](const auto& field) { return field.first == name; }))
        throw Error(Failure::corrupt_data, path, ": has no tensor ", name, "; the model was trained on ",
                    join(field_names(), ", "));
    for (const auto& [name, tensor] : fields_) check(path, name, tensor);
  }

  int64_t rows() const override { return fields_.front().second.size(0); }

  bool next(RowBlock& block) override {
    const int64_t count = std::min(options_.block, rows() - done_);
    if (count <= 0) return false;
    Batch batch;
    batch.rows = batch.global_rows = batch.nominal_rows = count;
    for (const auto& [name, tensor] : fields_) {
      const at::Tensor part = tensor.narrow(0, done_, count);
      const Field& field = schema_.at(name, "convoy predict");
      check_values(name, field, part);
      at::Tensor values = part.scalar_type() == at::kByte ? part.clone() : part.to(field.dtype).contiguous();
      if (name == "features" && !preparation_.is_identity())
        values = preparation_.applied(part.to(at::kFloat).contiguous());
      batch.tensors.emplace_back(name, values);
    }
    batch.tensors.emplace_back("target", trained_.zero_target(count, schema_.at("target", "convoy predict").shape));
    block.batch = std::move(batch);
    block.lines.clear();
    block.read = count;
    done_ += count;
    return true;
  }

 private:
  std::vector<std::string> field_names() const {
    std::vector<std::string> names;
    for (const auto& [name, field] : schema_.fields)
      if (name != "target" && name != "weight") names.push_back(name);
    return names;
  }
  void check(const std::string& path, const std::string& name, const at::Tensor& tensor) const {
    std::vector<int64_t> wanted = schema_.at(name, "convoy predict").shape;
    if (name == "features" && !preparation_.is_identity()) wanted = {preparation_.raw_width()};
    if (tensor.dim() == 0 || tensor.sizes().slice(1) != at::IntArrayRef(wanted))
      throw Error(Failure::corrupt_data, path, ": rows of ", name, " have the shape ", tensor.sizes().slice(1),
                  ", and the model was trained on ", at::IntArrayRef(wanted));
    if (tensor.size(0) != rows())
      throw Error(Failure::corrupt_data, path, ": has ", tensor.size(0), " rows of ", name, " and ", rows(), " of ",
                  fields_.front().first);
  }

  // True where a value is no number from 0 to below `count` (0: any).
  static at::Tensor no_number(const at::Tensor& values, int64_t count) {
    const at::Tensor wrong = values.floor().ne(values).logical_or(values.lt(0));
    return count > 0 ? wrong.logical_or(values.ge(double(count))) : wrong;
  }

  // Ids, categories and numbers must be such as the model was trained on: an id out of range would read other memory.
  // `part`: the rows from `done_` on.
  void check_values(const std::string& name, const Field& field, const at::Tensor& part) const {
    const bool whole = !at::isFloatingType(field.dtype) && field.dtype != at::kByte;
    const at::Tensor values = part.to(at::kDouble).reshape({part.size(0), -1});
    at::Tensor wrong = values.isfinite().logical_not();
    if (whole) wrong = wrong.logical_or(no_number(values, field.cardinality));
    if (name == "features")
      for (size_t column = 0; column < preparation_.columns().size(); ++column)
        if (const PreparedColumn& prepared = preparation_.columns()[column]; prepared.categorical)
          wrong.select(1, int64_t(column))
              .logical_or_(no_number(values.select(1, int64_t(column)), int64_t(prepared.categories.size())));
    if (!wrong.any().item<bool>()) return;
    const at::Tensor at = wrong.nonzero()[0];
    const int64_t row = at[0].item<int64_t>(), column = at[1].item<int64_t>();
    throw Error(Failure::corrupt_data, path_, ": ", name, ", row ", done_ + row, ", value ", column, ": is ",
                values[row][column].item<double>(), ", which is ",
                whole ? str("no number of an id or token from 0 to ", field.cardinality - 1)
                      : "not finite, or no number of a category that was seen in training");
  }

  const std::string path_;
  const NewRowsOptions options_;
  const TrainedData trained_;
  const Schema& schema_;
  std::optional<SafetensorsFile> file_;
  std::vector<std::pair<std::string, at::Tensor>> fields_;
  Preparation preparation_;
  int64_t done_ = 0;
};

}  // namespace

std::unique_ptr<NewRows> open_new_arrays(const std::string& path, const TrainedData& trained,
                                         const NewRowsOptions& options) {
  return std::make_unique<ArrayRows>(path, trained, options);
}

}  // namespace convoy
