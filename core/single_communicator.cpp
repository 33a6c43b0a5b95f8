#include "core/communicator.h"

#include <deque>
#include <mutex>

#include "core/base/error.h"
#include "core/context.h"

namespace convoy {
namespace {

// Work of an operation that has already ended.
class DoneWork : public Work {
 public:
  void wait() override {}
  bool done() override { return true; }
};

void check_counts(const std::vector<int64_t>& counts, const at::Tensor& tensor, const CallOptions& call) {
  CONVOY_CHECK(counts.size() == 1 && tensor.dim() > 0 && counts[0] == tensor.size(0), "counts of '", call.name,
               "' do not fit a group of one rank");
}

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(std::string backend) : backend_(std::move(backend)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& backend() const override { return backend_; }
  std::vector<at::DeviceType> devices() const override { return {at::kCPU, at::kCUDA}; }
  int64_t bytes_sent() const override { return 0; }
  double wait_seconds() const override { return 0; }
  double wait_cpu_seconds() const override { return 0; }

  WorkPtr all_reduce(at::Tensor, ReduceOp, const CallOptions&) override { return finished(); }
  WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) override {
    return copied(output, input, call);
  }
  WorkPtr all_gather_v(at::Tensor output, at::Tensor input, const std::vector<int64_t>& counts,
                       const CallOptions& call) override {
    check_counts(counts, input, call);
    return copied(output, input, call);
  }
  WorkPtr all_to_all_v(at::Tensor output, const std::vector<int64_t>& output_counts, at::Tensor input,
                       const std::vector<int64_t>& input_counts, const CallOptions& call) override {
    check_counts(output_counts, output, call);
    check_counts(input_counts, input, call);
    return copied(output, input, call);
  }
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp, const CallOptions& call) override {
    return copied(output, input, call);
  }
  WorkPtr broadcast(at::Tensor, int root, const CallOptions& call) override {
    check_peer(root, call);
    return finished();
  }

  // Sends to itself: a queue keeps each send until its receive.
  WorkPtr send(at::Tensor tensor, int peer, const CallOptions& call) override {
    check_peer(peer, call);
    std::lock_guard<std::mutex> lock(mutex_);
    sends_.push_back(tensor.detach().clone());
    return finished();
  }
  WorkPtr receive(at::Tensor tensor, int peer, const CallOptions& call) override {
    check_peer(peer, call);
    std::lock_guard<std::mutex> lock(mutex_);
    CONVOY_CHECK(!sends_.empty(), "a group of one rank waits in '", call.name, "' for a send that never happened");
    copy(tensor, sends_.front(), call);
    sends_.pop_front();
    return finished();
  }
  WorkPtr group(const std::vector<Transfer>& transfers, const CallOptions& call) override {
    for (const Transfer& transfer : transfers) {
      if (transfer.kind == Transfer::Kind::send) send(transfer.tensor, transfer.peer, call);
    }
    for (const Transfer& transfer : transfers) {
      if (transfer.kind == Transfer::Kind::receive) receive(transfer.tensor, transfer.peer, call);
    }
    return finished();
  }
  WorkPtr barrier(const CallOptions&) override { return finished(); }
  CommunicatorPtr split(int, int, const CallOptions&) override { return make_single_communicator(backend_); }
  void abort(const std::string&) override {}

 private:
  static WorkPtr finished() { return std::make_shared<DoneWork>(); }
  static void check_peer(int peer, const CallOptions& call) {
    CONVOY_CHECK(peer == 0, "rank ", peer, " in '", call.name, "' is not in a group of one rank");
  }
  static void copy(at::Tensor output, const at::Tensor& input, const CallOptions& call) {
    CONVOY_CHECK(output.numel() == input.numel() && output.scalar_type() == input.scalar_type(), "'", call.name,
                 "' takes tensors of one size and dtype");
    output.detach().copy_(input.detach().reshape(output.sizes()));
  }
  static WorkPtr copied(const at::Tensor& output, const at::Tensor& input, const CallOptions& call) {
    copy(output, input, call);
    return finished();
  }

  const std::string backend_;
  std::mutex mutex_;
  std::deque<at::Tensor> sends_;
};

}  // namespace

CommunicatorPtr make_single_communicator(const std::string& backend) {
  return std::make_shared<SingleCommunicator>(backend);
}

CommunicatorPtr Context::axis(const std::string& name) const {
  const auto found = axes.find(name);
  return found != axes.end() ? found->second : make_single_communicator();
}

}  // namespace convoy
