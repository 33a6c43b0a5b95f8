// A plugin with the mistakes that authors make, one at a time.
//
// The environment variable CONVOY_TEST_REGISTRATION selects a mistake of its registration. Options of its components
// select others: `mistake` of the model and the data set, and names of losses.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/model.h"
#include "core/plugin.h"
#include "core/strategy.h"

namespace convoy {
namespace {

using MetricList = std::vector<Metric>;

at::Tensor number(double value) { return at::full({}, value, at::kDouble); }

// One linear layer, with the mistake that `mistake` names.
class OneBlock : public Block {
 public:
  OneBlock(Layers& layers, int64_t in, int64_t out, const std::string& mistake)
      : dtype_(layers.dtype()), mistake_(mistake) {
    if (mistake == "block throws") throw std::runtime_error("no such block");
    if (mistake == "block crashes") std::raise(SIGSEGV);
    linear_ =
        register_module("linear", layers.linear(mistake == "layer in two lines" ? "lin\near" : "linear", in, out));
    if (mistake == "unused") unused_ = register_module("spare", layers.linear("spare", in, 3));
  }
  TensorList forward(const TensorList& inputs) override {
    if (mistake_ == "no output") return {};
    if (mistake_ == "throws a number") throw 42;
    if (mistake_ == "forward crashes") std::raise(SIGSEGV);
    if (mistake_ == "forward exits") std::exit(0);
    const at::Tensor output = linear_->forward(inputs[0].to(dtype_));
    return {mistake_ == "detached" ? output.detach() : output};
  }

 private:
  at::ScalarType dtype_;
  std::string mistake_;
  Layer linear_, unused_;
};

class Mistaken : public Model {
 public:
  Mistaken(const Options& options, const Schema& schema)
      : mistake_(options.text("mistake")),
        in_(schema.at("features", "model mistaken").shape.at(0)),
        classes_(schema.at("target", "model mistaken").cardinality) {
    if (mistake_ == "model throws") throw std::invalid_argument("cannot be built");
    if (mistake_ == "model throws a number") throw 42;
    if (mistake_ == "model crashes") std::raise(SIGSEGV);
    if (mistake_ == "option not described") options.integer("heads");
    if (mistake_ == "option of another type") options.integer("mistake");
  }
  int64_t blocks() const override {
    if (mistake_ == "blocks throws") throw std::runtime_error("not counted");
    return mistake_ == "no blocks" ? 0 : mistake_ == "many blocks" ? int64_t{1} << 40 : 1;
  }
  std::string block_name(int64_t) const override {
    if (mistake_ == "name throws") throw 42;
    if (mistake_ == "name in two lines") return "on\nly";
    return "only";
  }
  BlockPtr block(int64_t, Layers& layers) const override {
    if (mistake_ == "null block") return nullptr;
    return std::make_shared<OneBlock>(layers, in_, classes_, mistake_);
  }
  TensorList inputs(const Batch& batch) const override {
    return {batch.at(mistake_ == "no such field" ? "pixels" : "features")};
  }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    if (mistake_ == "examples throws") throw std::runtime_error("no target");
    return {mistake_ == "no prediction" ? at::Tensor() : outputs[0], batch.at("target"), at::Tensor()};
  }
  std::string default_loss() const override {
    if (mistake_ == "default loss throws") throw std::runtime_error("no loss");
    if (mistake_ == "no default loss") return "";
    return mistake_ == "no such loss" ? "cross_entrpy" : mistake_ == "own loss" ? "described" : "cross_entropy";
  }
  MetricList metrics(const TensorList&, const Batch& batch, Layers&) const override {
    const at::Tensor rows = number(double(batch.rows));
    if (mistake_ == "wide metric") return {{"wide", at::ones({3}, at::kDouble), rows}};
    if (mistake_ == "wide weight") return {{"wide", rows, at::ones({3}, at::kDouble)}};
    if (mistake_ == "metric loss") return {{"loss", rows, rows}};
    if (mistake_ == "metric twice") return {{"same", rows, rows}, {"same", rows, rows}};
    if (mistake_ == "metric name") return {{"a name\n", rows, rows}};
    if (mistake_ == "undefined metric") return {{"none", at::Tensor(), rows}};
    if (mistake_ == "metric of booleans") return {{"truth", at::ones({}, at::kBool), rows}};
    if (mistake_ == "changing metric") return {{batch.rows == 16 ? "whole" : "rest", rows, rows}};
    if (mistake_ == "metric by rank") {
      const char* rank = std::getenv("CONVOY_RANK");
      return {{std::string("of_rank_") + (rank == nullptr ? "0" : rank), rows, rows}};
    }
    return {{"rows", rows, rows}};
  }

 private:
  std::string mistake_;
  int64_t in_, classes_;
};

// Mistakes of a loss, selected by its name.
class MistakenLoss : public LossFunction {
 public:
  explicit MistakenLoss(std::string mistake) : mistake_(std::move(mistake)) {}
  Loss operator()(const Examples& examples, Layers&) const override {
    const at::Tensor rows = (examples.prediction * examples.prediction).sum(-1);
    if (mistake_ == "vector_loss") return {rows, at::ones_like(rows).detach()};
    if (mistake_ == "undefined_loss") return {};
    if (mistake_ == "graphless_loss") return {rows.sum().detach(), number(double(rows.numel()))};
    if (mistake_ == "uncounted_loss") return {rows.sum().detach(), number(0)};
    return {rows.sum(), number(double(rows.numel()))};
  }

 private:
  std::string mistake_;
};

class MistakenData : public Dataset {
 public:
  explicit MistakenData(std::string mistake) : mistake_(std::move(mistake)) {
    if (mistake_ == "data throws") throw std::runtime_error("the disk is gone");
  }
  Schema schema() const override {
    if (mistake_ == "schema throws") throw std::runtime_error("no header");
    Schema schema;
    schema.fields["features"] = {{mistake_ == "endless row" ? int64_t{1} << 62 : 4}, at::kFloat, 0};
    if (mistake_ == "field in two lines") schema.fields["fie\nld"] = {{}, at::kFloat, 0};
    schema.fields["target"] = {{}, at::kLong, mistake_ == "minus one class" ? -1 : 2};
    return schema;
  }
  int64_t size(Split split) const override {
    if (split == Split::evaluate) return 0;
    return mistake_ == "no rows" ? 0 : 32;
  }
  int64_t instances_per_row() const override { return 1; }
  Batch gather(Split, const at::Tensor& indices, int64_t, BatchBuffers&) const override {
    if (mistake_ == "gather throws a number") throw 42;
    Batch batch;
    if (mistake_ == "no fields") {
      batch.rows = indices.numel();
      return batch;
    }
    batch.rows = indices.numel() - (mistake_ == "other rows" ? 1 : 0);
    batch.tensors = {
        {"features", at::ones({indices.numel(), 4})},
        {"target", mistake_ == "scalar field" ? at::zeros({}, at::kLong) : at::zeros({indices.numel()}, at::kLong)}};
    return batch;
  }

 private:
  std::string mistake_;
};

Entry named(const std::string& name, std::vector<Option> options = {}) {
  Entry entry;
  entry.name = name;
  entry.help = "of the test";
  entry.options = std::move(options);
  return entry;
}

void register_parts(Registry& registry) {
  registry.catalogues.kinds["model"].push_back(named("mistaken", {describe::text("mistake", "which one", "none")}));
  registry.models.add("mistaken", [](const Options& options, const Schema& schema) {
    return std::make_shared<Mistaken>(options, schema);
  });
  for (const char* name :
       {"vector_loss", "undefined_loss", "graphless_loss", "uncounted_loss", "null_loss", "described"}) {
    auto options = name == std::string("described")
                       ? std::vector<Option>{describe::real("delta", "an option with a default", 0.5)}
                       : std::vector<Option>{};
    registry.catalogues.kinds["loss"].push_back(named(name, options));
    registry.losses.add(name, [name](const Options& given) -> std::shared_ptr<const LossFunction> {
      if (name == std::string("null_loss")) return nullptr;
      if (name == std::string("described")) given.real("delta");
      return std::make_shared<MistakenLoss>(name);
    });
  }
  registry.catalogues.kinds["data"].push_back(named("mistaken", {describe::text("mistake", "which one", "none")}));
  registry.datasets.add("mistaken", [](const Options& options, uint64_t) {
    return std::make_shared<MistakenData>(options.text("mistake"));
  });
}

// Nothing by default.
void register_mistake(Registry& registry, const std::string& mistake) {
  const auto loss = [](const Options&) { return std::make_shared<MistakenLoss>(""); };
  auto& kinds = registry.catalogues.kinds;
  if (mistake == "built-in replaced") registry.losses.add("mse", loss);
  if (mistake == "built-in described") kinds["loss"].push_back(named("mse"));
  if (mistake == "no entry") registry.losses.add("mine", loss);
  if (mistake == "no factory") kinds["loss"].push_back(named("mine"));
  if (mistake == "empty factory") registry.losses.add("mine", nullptr);
  if (mistake == "an optimizer") kinds["optimizer"].push_back(named("mine"));
  if (mistake == "a strategy") registry.strategies.add("mine", [](const Options&) { return nullptr; });
  if (mistake == "entries removed") kinds["loss"].clear();
  if (mistake == "entry in two lines") kinds["loss"].push_back(named("mi\nne"));
  if (mistake == "factory in two lines") registry.losses.add("mi\nne", loss);
  if (mistake == "empty factory in two lines") registry.losses.add("mi\nne", nullptr);
  if (mistake == "throws") throw std::runtime_error("not today");
  if (mistake == "throws a number") throw 42;
  if (mistake == "crashes") std::raise(SIGSEGV);
  if (mistake == "exits") std::exit(0);
  if (mistake == "exits at once") _exit(0);
  if (mistake == "exits at once with 3") _exit(3);
  if (mistake == "exits as a configuration error") {
    std::fputs("bye\n", stderr);
    _exit(78);
  }
  if (mistake == "exits quickly") std::quick_exit(5);
  if (mistake == "prints") std::printf("hello from the plugin");
  const auto described = [&](Option option) {
    kinds["loss"].push_back(named("mine", {std::move(option)}));
    registry.losses.add("mine", loss);
  };
  if (mistake == "default does not fit") described(describe::integer("count", "a number", "many"));
  if (mistake == "option in two lines") described(describe::text("co\nunt", "a number", "x"));
  if (mistake == "option called name") described(describe::text("name", "taken", "x"));
  if (mistake == "list of nothing") described(describe::option(OptionType::list, "many", "a list without an item"));
}

}  // namespace

CONVOY_PLUGIN(registry) {
  const char* mistake = std::getenv("CONVOY_TEST_REGISTRATION");
  register_parts(registry);
  register_mistake(registry, mistake == nullptr ? "" : mistake);
}

}  // namespace convoy
