// GroupCommunicator: the part of a Communicator that all backends share. A Transport moves the data.
//
// It checks arguments, copies strided tensors, stages tensors on unsupported devices, and handles messages from a rank
// to itself. It counts bytes, applies time limits, reports waits, and sends `abort` to the peers over the control
// channel. Groups of one rank have no transport (make_single_communicator).
//
// bytes_sent, with n ranks and B bytes of this rank's input: all-reduce 2(n-1)/n B, reduce-scatter (n-1)/n B,
// all-gather (n-1) B, all-to-all the bytes for other ranks, broadcast (n-1) B on the root and 0 elsewhere, send B,
// barrier 0. The sum over ranks is that of a bandwidth-optimal algorithm, whatever the backend's library sends.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backends/communicator/staging.h"
#include "backends/communicator/transport.h"
#include "core/backend.h"
#include "core/communicator.h"

namespace convoy {

class GroupState;  // shared by a communicator and its works (group_state.h)

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport);
  ~GroupCommunicator() override;

  int rank() const override;
  int size() const override;
  const std::string& backend() const override;
  std::vector<at::DeviceType> devices() const override;
  int64_t bytes_sent() const override;
  double wait_seconds() const override;
  double wait_cpu_seconds() const override;

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) override;
  WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) override;
  WorkPtr all_gather_v(at::Tensor output, at::Tensor input, const std::vector<int64_t>& counts,
                       const CallOptions& call) override;
  WorkPtr all_to_all_v(at::Tensor output, const std::vector<int64_t>& output_counts, at::Tensor input,
                       const std::vector<int64_t>& input_counts, const CallOptions& call) override;
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) override;
  WorkPtr broadcast(at::Tensor tensor, int root, const CallOptions& call) override;
  WorkPtr send(at::Tensor tensor, int peer, const CallOptions& call) override;
  WorkPtr receive(at::Tensor tensor, int peer, const CallOptions& call) override;
  WorkPtr group(const std::vector<Transfer>& transfers, const CallOptions& call) override;
  WorkPtr barrier(const CallOptions& call) override;
  at::Tensor common_memory(int64_t bytes, const CallOptions& call) override;
  CommunicatorPtr split(int color, int key, const CallOptions& call) override;
  void abort(const std::string& reason) override;

 private:
  Call start(Operation operation, const CallOptions& options, const at::Tensor& input) const;
  WorkPtr gather(Operation operation, at::Tensor output, at::Tensor input, const std::vector<int64_t>& rows,
                 const CallOptions& options);
  WorkPtr transfer(Operation operation, const std::vector<Transfer>& transfers, const CallOptions& options);
  WorkPtr serve_self(const Call& call, const std::vector<Transfer>& transfers);
  // Runs `issue`, which passes the call to the transport: now, or later on another thread if the ranks must compare
  // their calls first.
  template <class Issue>
  WorkPtr launch(Call call, Staging staging, Issue issue);

  std::shared_ptr<GroupState> state_;
  std::shared_ptr<Transport> transport_;
  std::vector<at::DeviceType> devices_;  // devices that the transport supports
  at::Device staged_{at::kCPU};          // memory in which tensors of other devices are staged
  int splits_ = 0;                       // this and the next member are guarded by the state's issue lock
  std::vector<at::Tensor> to_self_;      // tensors sent to this rank itself and not yet received
};

// Creates the world of a job over a connected transport (null: one rank). Used by every backend's factory.
CommunicatorPtr make_world(const BackendRequest& request, const std::string& backend,
                           std::shared_ptr<Transport> transport);

}  // namespace convoy
