// DeviceGraph: operations of one device, recorded once and then launched as a whole. A light model's step is hundreds of
// kernels that take longer to launch one by one than to run; as a graph they are one launch (CUDA graphs).
//
// What is recorded is a sequence of kernels with the addresses that they were given: every launch reads the tensors that
// recording read and writes those that it wrote, and nothing that the host decides is decided again.
// Threads: the rank's own. Made by Context::make_graph.
#pragma once
#include <functional>

namespace convoy {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Calls `work` once; nothing of it has happened on the device afterwards. Throws where something in it cannot be recorded
  // (a wait for the device, say); then there is nothing to launch, and the device goes on as before. Tensors made meanwhile
  // keep their memory as long as this lives.
  virtual void record(const std::function<void()>& work) = 0;
  // Behind what the current stream has been given, without waiting for it.
  virtual void launch() = 0;
};

}  // namespace convoy
