// Mailbox: what the threads of a rank's devices hand over to each other.
//
// Threads: thread-safe. `take` waits until somebody gave, and throws Stopped once somebody has called stop.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>

#include "strategies/parts/stages/schedule.h"
#include "strategies/parts/stages/stage_link.h"

namespace convoy {

class Mailbox {
 public:
  // Another thread failed. It is no error of its own.
  struct Stopped {};
  using Key = std::tuple<Action::Kind, int, int>;  // kind, receiving stage, micro-batch

  // Empty and not stopped, as in the beginning.
  void open();
  void stop();
  void give(const Key& key, Activations what);
  Activations take(const Key& key);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Activations> waiting_;
  bool stopped_ = false;
};

// One device's end of it: what comes is brought to its memory.
class DeviceLink : public StageLink {
 public:
  DeviceLink(Mailbox& mailbox, at::Device device) : mailbox_(mailbox), device_(device) {}

  void ahead(size_t) override {}
  void give_activations(int stage, int micro, Activations activations) override;
  Activations take_activations(int stage, int micro) override;
  void give_gradients(int stage, int micro, TensorList gradients) override;
  TensorList take_gradients(int stage, int micro) override;

 private:
  Activations received(const Mailbox::Key& key);

  Mailbox& mailbox_;
  at::Device device_;
};

}  // namespace convoy
