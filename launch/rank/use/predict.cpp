// `convoy predict`: outputs of a trained model for the rows of a file.
//
// Rank 0 does the work with all cores; the model is whole there. Rows are read, computed and written in blocks, so
// memory does not depend on their number.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/formats/delimited.h"
#include "core/data/prediction_file.h"
#include "core/data/readers/new_rows.h"
#include "core/files/limits.h"
#include "core/tensors/tensor_memory.h"
#include "launch/rank/use/use.h"

namespace convoy {
namespace {

// Turns outputs of the members into predictions.
class Predictor {
 public:
  explicit Predictor(UseContext& use) : use_(use), models_(use.models()) {
    const Field& target = use.schema().at("target", "convoy predict");
    const std::string& configured = use.config().loss.name;
    const Model& model = *models_.front().impl().model;
    const std::string loss = configured.empty() ? model.default_loss() : configured;
    classes_ = target.cardinality;
    logits_ = loss == "bce";
    if (classes_ > 0 && !target.shape.empty())
      throw Error(Failure::config, "convoy predict: the model predicts one of ", classes_,
                  " for each of several positions of a row; for text use convoy generate");
  }

  Predictions operator()(const Batch& batch) const {
    const at::NoGradGuard no_grad;
    TensorList each;
    for (const LoadedModel& model : models_) {
      const TensorList outputs = model.forward(batch);
      each.push_back(model.impl().model->examples(outputs, batch).prediction.to(at::kCPU, at::kFloat));
    }
    return classes_ > 0 ? of_classes(each, batch.rows) : of_numbers(each, batch.rows);
  }

  // Names of the classes; none for numbers.
  std::vector<std::string> class_names() const {
    std::vector<std::string> names;
    if (const auto& contents = use_.contents())
      if (const auto found = contents->lists.find("classes"); found != contents->lists.end())
        for (const std::string& name : found->second.names.strings()) names.push_back(plain_name(name));
    for (auto number = int64_t(names.size()); number < classes_; ++number) names.push_back(std::to_string(number));
    return names;
  }
  int64_t members() const { return int64_t(models_.size()); }

 private:
  // Mean of the members' probabilities; one vote per member for its likeliest class, ties broken by the mean.
  Predictions of_classes(const TensorList& each, int64_t rows) const {
    std::vector<at::Tensor> probabilities;
    for (const at::Tensor& logits : each) {
      if (logits.dim() != 2 || logits.size(1) < classes_)
        throw Error(Failure::config, "convoy predict: the model gives outputs of shape ", logits.sizes(), " for ", rows,
                    " rows of ", classes_, " classes");
      // Columns after the classes are auxiliary terms of the loss.
      probabilities.push_back(logits.narrow(1, 0, classes_).softmax(-1));
    }
    Predictions predictions;
    const at::Tensor all = at::stack(probabilities);
    predictions.values = all.mean(0).contiguous();
    if (each.size() == 1) {
      predictions.best = predictions.values.argmax(-1);
      return predictions;
    }
    predictions.members = all.argmax(-1).contiguous();
    const at::Tensor votes = at::zeros_like(all).scatter_(-1, predictions.members.unsqueeze(-1), 1).sum(0);
    predictions.best = (votes + predictions.values / 2).argmax(-1);
    return predictions;
  }

  Predictions of_numbers(const TensorList& each, int64_t rows) const {
    std::vector<at::Tensor> numbers;
    for (const at::Tensor& outputs : each) {
      const at::Tensor flat = outputs.reshape({rows, rows == 0 ? 1 : -1});
      numbers.push_back(logits_ ? flat.sigmoid() : flat);
    }
    Predictions predictions;
    predictions.members = at::stack(numbers).contiguous();
    predictions.values = each.size() == 1 ? numbers[0].contiguous() : predictions.members.mean(0).contiguous();
    return predictions;
  }

  UseContext& use_;
  const std::vector<LoadedModel>& models_;
  int64_t classes_ = 0;
  bool logits_ = false;
};

class Predict : public Use {
 public:
  Json run(UseContext& use) override {
    if (use.rank().rank != 0) return {};
    const auto start = std::chrono::steady_clock::now();
    const Json& options = use.options();
    const auto path = options.at("data").get<std::string>();
    const DataContents* contents = use.contents() ? &*use.contents() : nullptr;
    NewRowsOptions reading;
    reading.skip_unknown = options.at("unknown") == "skip";
    const auto rows = open_new_rows(path, {use.config().data, use.schema(), contents}, reading);
    const EvaluationTransforms& transforms = use.models().front().impl().transforms;
    const Predictor predictor(use);

    std::unique_ptr<PredictionFile> file;
    PredictionForm form;
    form.classes = predictor.class_names();
    form.members = predictor.members();
    form.probabilities = probabilities_of(options.at("probabilities"));
    int64_t done = 0, written = 0;
    const auto write = [&](RowBlock& block) {
      transforms.apply(block.batch, written);
      const Predictions predictions = predictor(block.batch);
      if (!file) {
        form.width = predictions.values.size(1);
        file = make_prediction_file(use.output(), form, *rows);
      }
      file->write(predictions, block);
      done += block.read;
      written += block.batch.rows;
      use.progress(done, rows->rows(), "rows");
    };
    RowBlock block;
    while (rows->next(block)) write(block);
    if (!file) throw Error(Failure::corrupt_data, path, ": holds no rows");
    file->finish();
    const double seconds = seconds_since(start);
    return {{"rows", written},
            {"seconds", seconds},
            {"peak_bytes", memory_statistics().resident_peak},
            {"skipped", rows->skipped()},
            {"notes", rows->notes()},
            {"members", form.members},
            {"classes", form.classes.size()}};
  }

 private:
  static PredictionForm::Probabilities probabilities_of(const Json& word) {
    if (word == "best") return PredictionForm::Probabilities::best;
    return word == "none" ? PredictionForm::Probabilities::none : PredictionForm::Probabilities::all;
  }
};

}  // namespace

std::unique_ptr<Use> make_predict_use() { return std::make_unique<Predict>(); }

}  // namespace convoy
