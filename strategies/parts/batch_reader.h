// BatchReader: a DataAxis that wants to see a step's batch in front of its forwards. Where one is, the step shows it.
#pragma once
#include "core/batch.h"

namespace convoy {

class BatchReader {
 public:
  virtual ~BatchReader() = default;
  // Behind DataAxis::begin, on all ranks.
  virtual void expect(const Batch& batch) = 0;
};

}  // namespace convoy
