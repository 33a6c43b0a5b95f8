#include "core/data/prediction_file.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/formats/delimited.h"

namespace convoy {
namespace {

void append_number(std::string& text, float value) {
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  text.append(digits, end);
}

// Column with the number of each row of an array, because rows may be left out.
constexpr char number_column[] = "row";

class TextPredictions : public PredictionFile {
 public:
  TextPredictions(std::unique_ptr<OutputFile> file, const PredictionForm& form, const NewRows& rows)
      : file_(std::move(file)), form_(form), delimiter_(rows.delimiter() == '\0' ? ',' : rows.delimiter()) {
    for (const std::string& name : form.classes) append_field(classes_.emplace_back(), name, delimiter_);
    const bool arrays = rows.delimiter() == '\0';
    if (rows.header().empty() && !arrays) return;
    std::string line = rows.numbered() ? number_column : rows.header();
    std::vector<std::string> names = rows.names();
    if (rows.numbered()) names.emplace_back(number_column);
    for (const std::string& name : prediction_columns(form, names)) {
      if (!line.empty()) line += delimiter_;
      append_field(line, name, delimiter_);
      if (rows.typed_header()) line += form.classes.empty() || name.rfind("prob", 0) == 0 ? ":float" : ":token";
    }
    file_->write(line + "\n");
  }

  void write(const Predictions& predictions, const RowBlock& block) override {
    const int64_t rows = predictions.values.size(0);
    const int64_t pieces = std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), rows / 256));
    std::vector<std::string> texts(static_cast<size_t>(pieces));
    at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        texts[size_t(i)] = text_of(predictions, block, rows * i / pieces, rows * (i + 1) / pieces);
    });
    for (const std::string& text : texts) file_->write(text);
  }
  void finish() override { file_->commit(); }

 private:
  std::string text_of(const Predictions& predictions, const RowBlock& block, int64_t begin, int64_t end) const {
    const float* values = predictions.values.const_data_ptr<float>();
    std::string text;
    for (int64_t row = begin; row < end; ++row) {
      bool first = block.lines.empty() && block.numbers.empty();
      if (!block.lines.empty()) text.append(block.lines[size_t(row)]);
      if (!block.numbers.empty()) text.append(std::to_string(block.numbers[size_t(row)]));
      const auto separate = [&] {
        if (!first) text += delimiter_;
        first = false;
      };
      const float* mine = values + row * form_.width;
      if (predictions.best.defined()) {
        const int64_t best = predictions.best.const_data_ptr<int64_t>()[row];
        separate();
        text += classes_[size_t(best)];
        if (form_.probabilities == PredictionForm::Probabilities::best) {
          separate();
          append_number(text, mine[best]);
        }
      }
      const bool all = form_.classes.empty() || form_.probabilities == PredictionForm::Probabilities::all;
      for (int64_t column = 0; all && column < form_.width; ++column) {
        separate();
        append_number(text, mine[column]);
      }
      for (int64_t member = 0; form_.members > 1 && member < form_.members; ++member) {
        const int64_t at = member * predictions.values.size(0) + row;
        for (int64_t column = 0; column < (form_.classes.empty() ? form_.width : 1); ++column) {
          separate();
          if (form_.classes.empty())
            append_number(text, predictions.members.const_data_ptr<float>()[at * form_.width + column]);
          else
            text += classes_[size_t(predictions.members.const_data_ptr<int64_t>()[at])];
        }
      }
      text += '\n';
    }
    return text;
  }

  const std::unique_ptr<OutputFile> file_;
  const PredictionForm form_;
  const char delimiter_;
  std::vector<std::string> classes_;
};

// Float [rows, width], or [rows] for one number a row, after a header.
class ArrayPredictions : public PredictionFile {
 public:
  ArrayPredictions(std::unique_ptr<OutputFile> file, const PredictionForm& form, const NewRows& rows)
      : file_(std::move(file)), rows_(rows.rows()) {
    const bool flat = form.width == 1 && form.classes.empty();
    file_->write(ends_in(file_->path(), ".npy") ? npy_header(flat, form.width) : safetensors_header(flat, form));
  }
  void write(const Predictions& predictions, const RowBlock& block) override {
    CONVOY_CHECK(block.read == predictions.values.size(0), "rows of an array must not be left out");
    const at::Tensor values = predictions.values.contiguous();
    file_->write(values.const_data_ptr(), values.nbytes());
    written_ += values.size(0);
  }
  void finish() override {
    // The header has the number of rows that `rows` announced before they were read.
    CONVOY_CHECK(written_ == rows_, "the header of the array has ", rows_, " rows, and ", written_, " were written");
    file_->commit();
  }

 private:
  std::string npy_header(bool flat, int64_t width) const {
    std::string header = str("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows_, ",",
                             flat ? std::string() : str(" ", width), "), }");
    constexpr size_t before = 10, aligned = 64;
    while ((before + header.size() + 1) % aligned != 0) header += ' ';
    header += '\n';
    std::string text("\x93NUMPY\x01\x00", 8);
    text += char(header.size() & 255);
    text += char(header.size() >> 8);
    return text + header;
  }
  std::string safetensors_header(bool flat, const PredictionForm& form) const {
    Json shape = Json::array({rows_});
    if (!flat) shape.push_back(form.width);
    Json header{{"prediction", {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {0, rows_ * form.width * 4}}}}};
    if (!form.classes.empty()) header["__metadata__"] = {{"classes", Json(form.classes).dump()}};
    std::string json = header.dump();
    while (json.size() % 8 != 0) json += ' ';
    const uint64_t length = json.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + json;
  }

  const std::unique_ptr<OutputFile> file_;
  const int64_t rows_;
  int64_t written_ = 0;
};

}  // namespace

std::vector<std::string> prediction_columns(const PredictionForm& form, const std::vector<std::string>& existing) {
  std::vector<std::string> wanted;
  const auto numbers = [&](const std::string& name) {
    if (form.width == 1) wanted.push_back(name);
    for (int64_t i = 0; form.width > 1 && i < form.width; ++i) wanted.push_back(str(name, "_", i));
  };
  if (form.classes.empty()) {
    numbers("prediction");
  } else {
    wanted.emplace_back("prediction");
    if (form.probabilities == PredictionForm::Probabilities::best) wanted.emplace_back("probability");
    if (form.probabilities == PredictionForm::Probabilities::all)
      for (const std::string& name : form.classes) wanted.push_back("probability_" + name);
  }
  for (int64_t member = 0; form.members > 1 && member < form.members; ++member) {
    if (form.classes.empty())
      numbers(str("member", member));
    else
      wanted.push_back(str("member", member));
  }
  std::vector<std::string> taken = existing;
  for (std::string& name : wanted) {
    const std::string base = name;
    for (int number = 2; std::find(taken.begin(), taken.end(), name) != taken.end(); ++number)
      name = str(base, "_", number);
    taken.push_back(name);
  }
  return wanted;
}

std::unique_ptr<PredictionFile> make_prediction_file(std::unique_ptr<OutputFile> file, const PredictionForm& form,
                                                     const NewRows& rows) {
  if (ends_in(file->path(), ".npy") || ends_in(file->path(), ".safetensors"))
    return std::make_unique<ArrayPredictions>(std::move(file), form, rows);
  return std::make_unique<TextPredictions>(std::move(file), form, rows);
}

}  // namespace convoy
