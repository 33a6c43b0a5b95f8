// The same layers twice on every rank of a tensor group: sharded, and whole for comparison.
#pragma once
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategies/tensor/sharded_layers.h"
#include "tests/support/torch/random_tensors.h"
#include "tests/support/torch/ranks.h"

namespace convoy::testing {

// The forward of a block; it keeps the layers that it uses.
using Forward = std::function<at::Tensor(const at::Tensor&)>;
using Build = std::function<Forward(Layers&)>;

// Layers of one kind, and a block "block" made of them.
struct Side {
  std::shared_ptr<LayerStore> store = std::make_shared<LayerStore>();
  std::shared_ptr<Layers> layers, scope;
  Forward block;
  at::Tensor entered;  // last input of the block

  void build(const Build& make) {
    scope = layers->scope("block");
    block = make(*scope);
  }
  // Runs the block as a model part does.
  at::Tensor run(const at::Tensor& input) {
    store->state->rows = input.size(0);
    BlockBoundaries* const borders = store->boundaries.get();
    entered = input;
    if (borders != nullptr) {
      borders->begin();
      entered = borders->enter("block", {input}).front();
    }
    const at::Tensor output = block(entered);
    return borders != nullptr ? borders->leave({output}).front() : output;
  }
};

struct Pair {
  CommunicatorPtr group;
  Side whole, cut;

  // Compares every tensor of the sharded side with its pieces of the whole tensor.
  void expect_pieces(const std::function<at::Tensor(const Parameter&)>& of, double tolerance) const {
    EXPECT_EQ(cut.store->by_name.size(), whole.store->by_name.size());
    for (const auto& [name, mine] : cut.store->by_name) {
      const at::Tensor all = of(*whole.store->by_name.at(name)), own = of(*mine);
      ASSERT_EQ(all.defined(), own.defined()) << name;
      if (!all.defined()) continue;
      std::vector<LocalPiece> held = mine->held;
      if (held.empty()) held = {{0, all.size(0), Piece::whole(all.sizes())}};
      for (const LocalPiece& piece : held) {
        at::Tensor expected = all;
        for (int64_t d = 0; d < all.dim(); ++d) {
          const auto i = static_cast<size_t>(d);
          expected = expected.narrow(d, piece.piece.offset[i], piece.piece.length[i]);
        }
        const at::Tensor given = own.slice(0, piece.begin, piece.end);
        ASSERT_EQ(given.sizes(), expected.sizes()) << name;
        const bool same = tolerance == 0 ? given.equal(expected) : given.allclose(expected, tolerance, tolerance);
        EXPECT_TRUE(same) << name << " on rank " << group->rank() << " of " << group->size() << "\n"
                          << given << "\n"
                          << expected;
      }
    }
  }
  void expect_values() const {
    expect_pieces([](const Parameter& parameter) { return parameter.value.detach(); }, 0);
  }
  void expect_gradients(double tolerance = 1e-12) const {
    expect_pieces([](const Parameter& parameter) { return parameter.value.grad(); }, tolerance);
  }
};

// Calls `body` on each of `size` ranks.
inline void on_ranks(int size, const TensorOptions& options, const Build& build, const std::function<void(Pair&)>& body,
                     at::ScalarType dtype = at::kDouble) {
  run_ranks({"local", size}, [&](Communicator& world) {
    Pair pair;
    pair.group = world.split(0, world.rank(), {"tensor", {}});
    for (Side* side : {&pair.whole, &pair.cut}) {
      side->store->dtype = dtype;
      side->store->seed = side->store->state->seed = 5;
      side->store->state->step = 4;
      side->store->state->training = true;
    }
    pair.whole.layers = std::make_shared<DefaultLayers>(pair.whole.store);
    pair.cut.layers = sharded_layers(pair.group, options)(pair.cut.store);
    pair.whole.build(build);
    pair.cut.build(build);
    body(pair);
  });
}

// Compares initial values, output, and gradients of the input and of all parameters.
inline void expect_equal(int size, const Build& build, at::IntArrayRef shape, const TensorOptions& options = {}) {
  SCOPED_TRACE(convoy::str(size, " ranks"));
  on_ranks(size, options, build, [&](Pair& pair) {
    pair.expect_values();
    at::Tensor input = normal(shape, "x").set_requires_grad(true), same = normal(shape, "x").set_requires_grad(true);
    const at::Tensor wanted = pair.whole.run(input);
    const at::Tensor given = pair.cut.layers->gathered(pair.cut.run(same));
    ASSERT_EQ(given.sizes(), wanted.sizes());
    EXPECT_TRUE(given.allclose(wanted, 1e-12, 1e-12));
    const at::Tensor seed = normal(wanted.sizes(), "seed");
    torch::autograd::backward({wanted}, {seed});
    torch::autograd::backward({given}, {seed});
    EXPECT_TRUE(same.grad().allclose(input.grad(), 1e-12, 1e-12));
    pair.expect_gradients();
  });
}

inline LinearOptions with_cut(LinearOptions::Cut cut, int64_t parts = 1, bool gather = false) {
  LinearOptions options;
  options.cut = cut;
  options.parts = parts;
  options.gather = gather;
  return options;
}

}  // namespace convoy::testing
