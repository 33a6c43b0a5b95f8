#include "core/data/readers/new_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
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
