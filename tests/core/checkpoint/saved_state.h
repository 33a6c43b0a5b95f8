// A small state, in several layouts, and checkpoints of it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/checkpoint/checkpoint.h"
#include "core/communicator.h"
#include "core/control/channel.h"
#include "tests/support/failing_files.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch/ranks.h"
#include "tests/support/torch/state_view.h"

namespace convoy::saved_state {

// A strategy that only has state.
class StateOwner : public Strategy {
 public:
  explicit StateOwner(std::vector<StateEntry> entries) : entries(std::move(entries)) {}
  void setup(const Context&, ModelPtr, std::shared_ptr<const LossFunction>) override {}
  Sampling sampling() const override { return {}; }
  StepResult step(const StepInput&) override { return {}; }
  std::vector<Metric> evaluate(const Batch&) override { return {}; }
  bool evaluated(const std::map<std::string, MetricValue>&) override { return false; }
  void flush() override {}
  void visit_state(const StateVisitor& visit) override {
    for (const StateEntry& entry : entries)
      if (entry.kind != StateKind::gradient) visit(entry);
  }
  void visit_gradients(const StateVisitor& visit) override {
    for (const StateEntry& entry : entries)
      if (entry.kind == StateKind::gradient) visit(entry);
  }
  void state_restored() override {}

  std::vector<StateEntry> entries;
};

inline StateEntry entry(const std::string& name, StateKind kind, const Piece& piece, at::Tensor tensor,
                        bool owner = true) {
  StateEntry made;
  made.name = name;
  made.kind = kind;
  if (kind == StateKind::moment) made.moment = "exp_avg";
  made.piece = piece;
  made.tensor = std::move(tensor);
  made.owner = owner;
  return made;
}

inline at::Tensor weight_value() { return at::arange(35, at::kFloat).reshape({7, 5}); }
inline at::Tensor bias_value() { return at::arange(7, at::kDouble) - 3; }
inline at::Tensor count_value() { return at::full({}, 41, at::kLong); }

// A layout returns a rank's piece of a weight [7, 5]. Other tensors are replicated, and rank 0 owns them.
using Layout = std::function<Piece(int rank, int size)>;

inline Piece whole(int, int) { return Piece::whole({7, 5}); }
inline Piece rows(int rank, int size) {
  Piece piece = whole(0, 1);
  piece.offset[0] = 7 * rank / size;
  piece.length[0] = 7 * (rank + 1) / size - piece.offset[0];
  return piece;
}
inline Piece columns(int rank, int size) {
  Piece piece = whole(0, 1);
  piece.offset[1] = 5 * rank / size;
  piece.length[1] = 5 * (rank + 1) / size - piece.offset[1];
  return piece;
}
inline Piece flat(int rank, int size) {
  Piece piece = whole(0, 1);
  piece.flat = {35 * rank / size, 35 * (rank + 1) / size};
  return piece;
}

inline StateOwner state_owner(const Layout& layout, int rank, int size, bool filled) {
  const Piece piece = layout(rank, size);
  const bool replicated = piece.is_whole() && size > 1;
  const auto value = [&](const at::Tensor& tensor) { return filled ? tensor.clone() : at::full_like(tensor, -9); };
  const at::Tensor part = piece_of(weight_value(), piece);
  return StateOwner({entry("b.bias", StateKind::parameter, Piece::whole({7}), value(bias_value()), rank == 0),
                     entry("a.weight", StateKind::parameter, piece, value(part), !replicated || rank == 0),
                     entry("a.weight", StateKind::moment, piece, value(part * 2), !replicated || rank == 0),
                     entry("a.weight", StateKind::gradient, piece, value(part * 3), !replicated || rank == 0),
                     entry("count", StateKind::counter, Piece::whole({}), value(count_value()), rank == 0)});
}

inline void expect_restored(const StateOwner& held) {
  for (const StateEntry& one : held.entries) {
    if (one.kind == StateKind::gradient) {
      EXPECT_TRUE(one.tensor.eq(-9).all().item<bool>()) << "a gradient was restored";
    } else if (one.name == "a.weight") {
      const at::Tensor expected = piece_of(weight_value(), one.piece) * (one.kind == StateKind::moment ? 2 : 1);
      EXPECT_TRUE(one.tensor.equal(expected)) << one.key();
    } else {
      EXPECT_TRUE(one.tensor.equal(one.name == "count" ? count_value() : bias_value())) << one.key();
    }
  }
}

inline Context context_of(CommunicatorPtr world, std::shared_ptr<Channel> channel) {
  Context context;
  context.rank = world->rank();
  context.size = world->size();
  context.host = "here";
  context.world = std::move(world);
  context.channel = std::move(channel);
  context.config.launch.collective = 20;
  context.config.resolved = {{"name", "test"}, {"model", {{"name", "numbers"}}}};
  return context;
}
inline Context alone() { return context_of(make_single_communicator(), make_local_channel()); }

inline void over_ranks(int size, const std::function<void(const Context&)>& body) {
  const auto channel = make_local_channel();
  run_ranks({"local", size}, [&](Communicator& world) {
    const CommunicatorPtr shared(&world, [](Communicator*) {});
    body(context_of(shared, channel));
  });
}

inline Json trainer_part(int64_t step) {
  return {{"step", step}, {"rows", 8 * step}, {"train_seconds", 1.5}, {"metrics", Json::object()}};
}

inline void save_alone(const std::string& folder, int64_t step, int64_t keep_last = 0,
                       FileSystem& files = system_files()) {
  const Context context = alone();
  StateOwner held = state_owner(whole, 0, 1, true);
  Checkpoints(context, folder, keep_last, files).save(held, {step, trainer_part(step)});
}

inline void flip(const std::string& path, size_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(std::streamoff(at));
  const char byte = char(file.get());
  file.seekp(std::streamoff(at));
  file.put(char(byte ^ 1));
}

}  // namespace convoy::saved_state
