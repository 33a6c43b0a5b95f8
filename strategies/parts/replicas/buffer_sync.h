// BufferSync: what becomes of buffers (batch norm's running figures) after an update on data-parallel ranks.
//
// `broadcast`: all take rank 0's. `mean`: the mean over ranks, which every rank's batches move; integer buffers take rank
// 0's. `local`: each rank keeps its own, and checkpoints hold rank 0's. Buffers of one dtype go in one message.
#pragma once
#include <string>
#include <vector>

#include "core/communicator.h"
#include "strategies/parts/parameter.h"

namespace convoy {

class BufferSync {
 public:
  // Moves the buffers' storage into flat tensors.
  BufferSync(const std::vector<NamedBuffer>& buffers, CommunicatorPtr group, const std::string& how);
  void start();  // launches; buffers must not be touched until finish
  void finish();

 private:
  struct Part {
    at::Tensor flat;
    bool mean = false;
    WorkPtr work;
  };
  CommunicatorPtr group_;
  std::vector<Part> parts_;  // one per dtype
};

}  // namespace convoy
