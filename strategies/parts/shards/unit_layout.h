// UnitLayout: where the parameters of a unit stand in its flat buffer, and what each rank has of it.
//
// The buffer is divided into equal, contiguous parts, one per rank of a group. Parameters that one optimizer loop may sweep
// stand together; each starts at a multiple of 64 bytes, and the gaps between them are zero in values and gradients. A part
// begins and ends anywhere within a parameter. Pure data: no tensor is touched.
#pragma once
#include <cstdint>
#include <vector>

#include "core/optim/optimizer.h"
#include "strategies/parts/parameter.h"

namespace convoy {

class UnitLayout {
 public:
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  // What one optimizer loop sweeps of a rank's part.
  struct Slot {
    Range range;  // within the part
    GroupSettings group;
    bool counted = true;
  };

  // `alignment`: elements of 64 bytes in the narrowest dtype that the buffer is held in.
  UnitLayout(const std::vector<ParameterPtr>& parameters, int ranks, int64_t alignment, const Component& optimizer);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // in order of storage
  int64_t offset(size_t parameter) const { return offsets_[parameter]; }       // in the buffer
  const std::vector<Range>& gaps() const { return gaps_; }                     // of the buffer
  int ranks() const { return ranks_; }
  int64_t part() const { return part_; }  // elements a rank has
  int64_t whole() const { return part_ * ranks_; }

  std::vector<Slot> slots(int rank) const;
  // Elements of the parameter, row-major, that are in the rank's part; empty: none. They begin at `offset(parameter) +
  // begin - rank · part()` within it.
  Range held(size_t parameter, int rank) const;

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<int64_t> offsets_;
  std::vector<Slot> runs_;  // of the whole buffer
  std::vector<Range> gaps_;
  int ranks_;
  int64_t part_ = 0;
};

}  // namespace convoy
