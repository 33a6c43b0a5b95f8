// The whole table: the models of models/ × every strategy × ranks × accumulation × activation checkpointing × clipping,
// with an uneven last batch, in fp64 for ten AdamW steps, against `single` with the same micro-batches. An impossible
// cell is refused with the key that the table expects, so that no cell is silently empty. The other tests of this
// folder have unusual models.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/equivalence/expectations.h"

namespace convoy::testing {
namespace {

struct ExecutionMode {  // a strategy with its options
  std::string name, strategy, options;
  int ranks = 1;
  int micro = 1;
  int stages = 1;  // stages of the model
  int tensor = 1;
};
struct TableCell {
  std::string subject;
  ExecutionMode mode;
  int every = 1;
  bool recompute = false, clipping = false;
};

Subject subject_of(const std::string& name) {
  if (name == "mlp") return classifier_subject();
  if (name == "ncf") return ranking_subject();
  return subject_named(name);
}

std::vector<ExecutionMode> modes() {
  std::vector<ExecutionMode> all;
  const std::string sync = ", batch_norm: sync, buffers: broadcast",
                    small = ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006";
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::string devices;
    for (int device = 0; device < ranks; ++device)
      devices += (device > 0 ? ", cores:" : "cores:") + std::to_string(device);
    const std::string number = std::to_string(ranks);
    all.push_back({"data_parallel" + number, "data_parallel", ", devices: [" + devices + "]" + sync + small, ranks});
    all.push_back({"ddp" + number, "ddp", sync + small, ranks});
    for (const char* shard : {"optimizer", "gradients", "parameters"})
      all.push_back({"fsdp_" + std::string(shard) + number, "fsdp", ", shard: " + std::string(shard) + sync, ranks});
    all.push_back({"tensor_parallel" + number, "tensor_parallel", "", ranks, 1, 1, ranks});
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      const int chunks = std::string(schedule) == "interleaved" ? 2 : 1;
      all.push_back({"pipeline_" + std::string(schedule) + number, "pipeline", ", schedule: " + std::string(schedule),
                     ranks, 4, ranks * chunks});
    }
    if (ranks > 1)
      all.push_back({"model_parallel" + number, "model_parallel", ", devices: [" + devices + "]", 1, 2, ranks});
  }
  const std::string mesh = sync + ", mesh: ";
  all.push_back({"hybrid_data2_pipeline2", "hybrid", small + mesh + "{data: 2, pipeline: 2, tensor: 1}", 4, 4, 2});
  all.push_back({"hybrid_shards2_pipeline2", "hybrid", mesh + "{data: {degree: 2, how: fsdp}, pipeline: 2}", 4, 4, 2});
  all.push_back({"hybrid_data2_tensor2", "hybrid", small + mesh + "{data: 2, pipeline: 1, tensor: 2}", 4, 1, 1, 2});
  all.push_back({"hybrid_pipeline2_tensor2", "hybrid", mesh + "{pipeline: 2, tensor: 2}", 4, 4, 2, 2});
  return all;
}

std::vector<TableCell> table_cells() {
  std::vector<TableCell> all;
  for (const char* subject : {"mlp", "ncf", "convnet", "gpt", "llama"})
    for (const ExecutionMode& mode : modes())
      for (const int every : {1, 4})
        for (const bool recompute : {false, true})
          for (const bool clipping : {false, true}) all.push_back({subject, mode, every, recompute, clipping});
  return all;
}

std::string name_of(const TableCell& cell) {
  return cell.subject + "_" + cell.mode.name + "_every" + std::to_string(cell.every) +
         (cell.recompute ? "_recomputed" : "") + (cell.clipping ? "_clipped" : "");
}

// The key of the error that refuses an impossible cell before any rank starts. Empty: the cell is compared with
// `single`.
std::string refusal_of(const TableCell& cell) {
  const int blocks = static_cast<int>(subject_of(cell.subject).model()->blocks());
  // Reasons for more stages than blocks: two per rank, more ranks, or more devices.
  if (cell.mode.stages > blocks && cell.mode.strategy == "model_parallel") return "strategy.devices";
  if (cell.mode.stages > blocks && cell.mode.strategy == "hybrid") return "strategy.mesh.pipeline";
  if (cell.mode.stages > blocks) return cell.mode.stages > cell.mode.ranks ? "strategy.schedule" : "strategy.stages";
  const bool heads = cell.subject == "gpt" || cell.subject == "llama";
  if (heads && 4 % cell.mode.tensor != 0) return "model.heads";                       // there are four
  if (cell.subject == "llama" && 2 % cell.mode.tensor != 0) return "model.kv_heads";  // there are two
  return "";
}

class TableTest : public ::testing::TestWithParam<TableCell> {};

TEST_P(TableTest, EqualsSingleOrIsRefused) {
  const TableCell& cell = GetParam();
  const Layout layout{
      cell.mode.strategy,
      cell.mode.options + (cell.recompute ? ", recompute: blocks" : "") + common(cell.every, cell.mode.micro),
      cell.mode.ranks};
  const std::string refusal = refusal_of(cell);
  if (!refusal.empty()) {
    EXPECT_EQ(refused_key(layout, subject_of(cell.subject), adamw(cell.clipping)), refusal);
    return;
  }
  const Trajectory cut = train(layout, subject_of(cell.subject), adamw(cell.clipping));
  const Trajectory& whole = reference_of(subject_of(cell.subject), common(cell.every, cell.mode.micro), cell.clipping);
  expect_equal(cut, whole);
}

INSTANTIATE_TEST_SUITE_P(All, TableTest, ::testing::ValuesIn(table_cells()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace convoy::testing
