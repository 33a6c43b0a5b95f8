#include "core/data/readers/new_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/base/error.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/mapped_file.h"
#include "core/data/formats/npy_header.h"
#include "core/data/preparation.h"
#include "core/data/rows.h"
#include "core/data/sets/features.h"

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

// --- Text ---

// A category or an id that training did not have.
struct UnknownValue {
  size_t column;
  std::string reason;
};

// Columns of numbers and words for one field of a batch.
class ColumnParser {
 public:
  ColumnParser(Preparation preparation, std::vector<size_t> columns, const char* option)
      : preparation_(std::move(preparation)), columns_(std::move(columns)), option_(option) {
    for (const PreparedColumn& column : preparation_.columns()) {
      numbers_.emplace_back();
      for (size_t i = 0; i < column.categories.size(); ++i) numbers_.back().emplace(column.categories[i], float(i));
    }
  }
  int64_t width() const { return preparation_.width(); }
  int64_t raw_width() const { return preparation_.raw_width(); }

  // `raw` has raw_width() elements of memory.
  std::optional<UnknownValue> parse(const DelimitedReader& reader, float* raw, float* to) const {
    const bool direct = preparation_.is_identity();
    float* values = direct ? to : raw;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const PreparedColumn& column = preparation_.columns()[i];
      if (!column.categorical) {
        values[i] = raw_number(reader, columns_[i], column.fills, option_);
        continue;
      }
      const std::string_view field = reader.field(columns_[i]);
      const auto found = numbers_[i].find(is_missing_mark(field) ? std::string() : std::string(field));
      if (found == numbers_[i].end())
        return UnknownValue{columns_[i], str("category '", field, "' of column '", column.name,
                                             "' does not occur in the training data")};
      values[i] = found->second;
    }
    if (!direct) preparation_.apply(raw, 1, to);
    return std::nullopt;
  }

 private:
  const Preparation preparation_;
  const std::vector<size_t> columns_;
  const char* const option_;
  std::vector<std::unordered_map<std::string, float>> numbers_;
};

// Parses one row of text into row `r` of the tensors of a block. Const: several threads call it.
class RowParser {
 public:
  virtual ~RowParser() = default;
  virtual Batch make_batch(int64_t rows) const = 0;  // with all fields; `parse` fills them
  virtual int64_t scratch() const = 0;               // floats of memory that `parse` needs
  virtual std::optional<UnknownValue> parse(const DelimitedReader& reader, int64_t r, Batch& batch,
                                            float* scratch) const = 0;
  virtual void finish(Batch& /*batch*/) const {}  // after all rows are parsed
};

class TableParser : public RowParser {
 public:
  TableParser(const TrainedData& trained, ColumnParser features) : trained_(trained), features_(std::move(features)) {}
  Batch make_batch(int64_t rows) const override {
    Batch batch;
    batch.rows = rows;
    batch.tensors = {{"features", at::empty({rows, features_.width()}, at::kFloat)}};
    return batch;
  }
  int64_t scratch() const override { return features_.raw_width(); }
  std::optional<UnknownValue> parse(const DelimitedReader& reader, int64_t r, Batch& batch,
                                    float* scratch) const override {
    float* to = batch.tensors[0].second.mutable_data_ptr<float>() + r * features_.width();
    return features_.parse(reader, scratch, to);
  }
  void finish(Batch& batch) const override {
    batch.tensors.emplace_back("target",
                               trained_.zero_target(batch.rows, trained_.schema.at("target", "convoy predict").shape));
  }

 private:
  const TrainedData trained_;
  const ColumnParser features_;
};

class InteractionParser : public RowParser {
 public:
  InteractionParser(const TrainedData& trained, size_t user, size_t item, ColumnParser context)
      : trained_(trained),
        user_column_(user),
        item_column_(item),
        users_(trained.list("users")),
        items_(trained.list("items")),
        user_numbers_(users_),
        item_numbers_(items_),
        context_(std::move(context)),
        user_features_(features(trained, "user")),
        item_features_(features(trained, "item")) {
    if (users_.size() == 0 || items_.size() == 0)
      throw Error(Failure::config,
                  "the checkpoint has no ids of users and items: it is of synthetic data, or of an earlier version");
  }
  Batch make_batch(int64_t rows) const override {
    Batch batch;
    batch.rows = rows;
    batch.tensors = {{"user", at::empty({rows}, at::kLong)}, {"item", at::empty({rows, 1}, at::kLong)}};
    if (context_.width() > 0) batch.tensors.emplace_back("context", at::empty({rows, context_.width()}, at::kFloat));
    return batch;
  }
  int64_t scratch() const override { return context_.raw_width(); }
  std::optional<UnknownValue> parse(const DelimitedReader& reader, int64_t r, Batch& batch,
                                    float* scratch) const override {
    const auto number = [&](const NameNumbers& numbers, size_t column, const char* what,
                            int64_t& to) -> std::optional<UnknownValue> {
      to = numbers.find(reader.field(column));
      if (to >= 0) return std::nullopt;
      if (reader.field(column).empty()) reader.fail(column, str("the ", what, " is missing"));
      return UnknownValue{column, str(what, " '", reader.field(column), "' does not occur in the training data")};
    };
    auto unknown = number(user_numbers_, user_column_, "user", batch.tensors[0].second.mutable_data_ptr<int64_t>()[r]);
    if (!unknown)
      unknown = number(item_numbers_, item_column_, "item", batch.tensors[1].second.mutable_data_ptr<int64_t>()[r]);
    if (unknown || context_.width() == 0) return unknown;
    return context_.parse(reader, scratch, batch.tensors[2].second.mutable_data_ptr<float>() + r * context_.width());
  }
  void finish(Batch& batch) const override {
    const at::Tensor user = batch.tensors[0].second, item = batch.tensors[1].second;
    if (user_features_.defined()) batch.tensors.emplace_back("user_features", user_features_.index_select(0, user));
    if (item_features_.defined())
      batch.tensors.emplace_back("item_features", item_features_.index_select(0, item.flatten()).unsqueeze(1));
    batch.tensors.emplace_back("target", trained_.zero_target(batch.rows, {1}));
  }

 private:
  // Prepared, by number; undefined if there are none.
  static at::Tensor features(const TrainedData& trained, const std::string& entity) {
    const std::vector<std::string> columns = trained.list(entity + "_feature_columns").strings();
    if (columns.empty()) return {};
    const at::Tensor raw = rows_from_bytes(trained.list(entity + "_features"), int64_t(columns.size()));
    if (!raw.defined())
      throw Error(Failure::config, "the checkpoint, of an earlier version, has no features of ", entity,
                  "s; train a new one to predict");
    return trained.preparation(entity + "_features", columns).applied(raw);
  }

  const TrainedData trained_;
  const size_t user_column_, item_column_;
  const NameList users_, items_;
  const NameNumbers user_numbers_, item_numbers_;
  const ColumnParser context_;
  const at::Tensor user_features_, item_features_;
};

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

  // Of `rest_`. Keeps a part of the file in memory only.
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
    return std::make_unique<TableParser>(
        trained, ColumnParser(trained.preparation("features", names), columns, "data.features"));
  }

  std::unique_ptr<RowParser> interaction_parser(const Header& header, const TrainedData& trained) {
    const Options named = trained.data.options.section("columns");
    ColumnFinder finder(file_.path(), header.names());
    const size_t user = finder.find(named.text("user")), item = finder.find(named.text("item"));
    const std::vector<std::string> names = trained.list("context_columns").strings();
    std::vector<size_t> columns;
    for (const std::string& name : names) columns.push_back(finder.find(name));
    finder.finish(notes_);
    return std::make_unique<InteractionParser>(
        trained, user, item, ColumnParser(trained.preparation("context", names), columns, "data.columns.context"));
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

}  // namespace convoy
