// Passage: where a forward stands between the layers of a tensor group, so that those without a hint of their own
// (dropout, norms, losses) know what they are given.
//
// Regions. A column-cut layer opens one; the row-cut layer that takes its width closes it. Within it an activation of
// the shape that the opening layer gave is cut as its output is; one of the shape that it took is whole; any other
// was made of cut ones, and its last dimension is this rank's share in the order of ranks (attention weights of its
// heads, say). Outside everything is whole. Blocks begin outside: an activation that is cut across a border goes to a
// row-cut layer first.
//
// Sequences. With `sequence_parallel`, blocks that have cut layers are given floating inputs [B, T, features] as
// shares of T; their column-cut layers gather them, their row-cut layers give shares again. Parts of a model and
// blocks without cut layers are given whole ones. A block that makes something else of a share, such as [B, share of T], is
// refused: nobody could tell that from a whole.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "strategies/parts/block_borders.h"
#include "strategies/parts/tensor/group_functions.h"

namespace convoy {

class Passage : public BlockBorders {
 public:
  Passage(CommunicatorPtr group, bool sequence_parallel)
      : group_(std::move(group)), sequence_parallel_(sequence_parallel) {}

  // While blocks are built: this one has layers that are cut.
  void has_cut_layers(const std::string& block) { cut_blocks_.insert(block); }

  void begin() override;
  // Error(config) for a sequence that the ranks do not divide, and for an output of the block before that is a share of
  // sequences in another shape than theirs.
  Tensors enter(const std::string& block, Tensors inputs) override;
  void again(const std::string& block) override;
  Tensors leave(Tensors outputs) override;

  // A column-cut layer ran, and left its output cut.
  void open(const at::Tensor& input, const at::Tensor& output, const DimensionCut& cut);
  // A row-cut layer ran, whose inputs have this width.
  void close(int64_t width);

  // How the last dimension of an activation is cut; none: it is whole.
  std::optional<DimensionCut> cut_of(const at::Tensor& activation) const;
  // The same of the last block's output, behind `leave`.
  std::optional<DimensionCut> cut_of_output(const at::Tensor& output) const;
  // Of an activation that is whole in its last dimension: [B, share of T, features].
  bool is_share_of_sequence(const at::Tensor& activation) const;
  // A row-cut layer's sum [B, T, features] is to become shares.
  bool sum_becomes_shares(const at::Tensor& sum) const;
  // What is done with this activation is a part of what all ranks do with it, so gradients of whole parameters are
  // summed.
  bool is_part(const at::Tensor& activation) const;
  // The same of something whose use is not seen.
  bool is_part() const { return !open_.empty() || sequence_ > 0; }

 private:
  struct Region {
    std::vector<int64_t> input, output;  // shapes
    DimensionCut cut;                    // of the output's last dimension
  };
  bool is_sequence(const at::Tensor& value) const;
  at::Tensor entering(const at::Tensor& value, const std::string& block);
  Tensors gathered(Tensors values, const std::string& where) const;
  void check_outputs(const Tensors& outputs) const;

  CommunicatorPtr group_;
  bool sequence_parallel_;
  std::set<std::string> cut_blocks_;
  std::vector<Region> open_;
  std::vector<Region> outputs_;               // those that were open when the last block ended
  int64_t sequence_ = 0;                      // length of the whole ones whose shares are under way; 0: none
  std::map<std::string, int64_t> sequences_;  // the same, as each block was entered
  std::string block_;                         // that was entered last
  Tensors given_;                             // its inputs
};

}  // namespace convoy
