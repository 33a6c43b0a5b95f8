// Around a communicator: one collective of this rank is another one than its peers call.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "core/inject/around.h"

namespace convoy {
namespace {

// Of a call whose result nobody wants: keeps what it was given until it is over.
class Kept : public Work {
 public:
  Kept(WorkPtr work, std::vector<at::Tensor> tensors) : work_(std::move(work)), tensors_(std::move(tensors)) {}
  void wait() override { work_->wait(); }
  bool done() override { return work_->done(); }

 private:
  WorkPtr work_;
  std::vector<at::Tensor> tensors_;
};

at::ScalarType another(at::ScalarType dtype) { return dtype == at::kDouble ? at::kFloat : at::kDouble; }

class InjectedCommunicator : public Communicator {
 public:
  InjectedCommunicator(CommunicatorPtr inner, std::shared_ptr<Injector> injector)
      : inner_(std::move(inner)), injector_(std::move(injector)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& backend() const override { return inner_->backend(); }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  double wait_seconds() const override { return inner_->wait_seconds(); }
  double wait_cpu_seconds() const override { return inner_->wait_cpu_seconds(); }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) override {
    switch (injector_->differing()) {
      case Fault::Part::operation:
        return inner_->broadcast(tensor, 0, call);
      case Fault::Part::dtype:
        return kept(inner_->all_reduce(recast(tensor), op, call));
      case Fault::Part::shape:
        return kept(inner_->all_reduce(longer(tensor), op, call));
      default:
        return inner_->all_reduce(tensor, op, call);
    }
  }
  WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) override {
    switch (injector_->differing()) {
      case Fault::Part::operation:
        return kept(inner_->all_reduce(copy(input), ReduceOp::max, call));
      case Fault::Part::dtype:
        return kept(inner_->all_gather(copy(recast(output)), copy(recast(input)), call));
      case Fault::Part::shape:
        input = longer(input);
        return kept(inner_->all_gather(made(input, size()), input, call));
      default:
        return inner_->all_gather(output, input, call);
    }
  }
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) override {
    switch (injector_->differing()) {
      case Fault::Part::operation:
        return kept(inner_->all_reduce(copy(input), op, call));
      case Fault::Part::dtype:
        return kept(inner_->reduce_scatter(recast(output), recast(input), op, call));
      case Fault::Part::shape:
        output = longer(output);
        return kept(inner_->reduce_scatter(output, made(output, size()), op, call));
      default:
        return inner_->reduce_scatter(output, input, op, call);
    }
  }
  WorkPtr broadcast(at::Tensor tensor, int root, const CallOptions& call) override {
    switch (injector_->differing()) {
      case Fault::Part::operation:
        return kept(inner_->all_reduce(copy(tensor), ReduceOp::max, call));
      case Fault::Part::dtype:
        return kept(inner_->broadcast(recast(tensor), root, call));
      case Fault::Part::shape:
        return kept(inner_->broadcast(longer(tensor), root, call));
      default:
        return inner_->broadcast(tensor, root, call);
    }
  }

  WorkPtr all_gather_v(at::Tensor output, at::Tensor input, const std::vector<int64_t>& counts,
                       const CallOptions& call) override {
    return inner_->all_gather_v(output, input, counts, call);
  }
  WorkPtr all_to_all_v(at::Tensor output, const std::vector<int64_t>& output_counts, at::Tensor input,
                       const std::vector<int64_t>& input_counts, const CallOptions& call) override {
    return inner_->all_to_all_v(output, output_counts, input, input_counts, call);
  }
  WorkPtr send(at::Tensor tensor, int peer, const CallOptions& call) override {
    return inner_->send(tensor, peer, call);
  }
  WorkPtr receive(at::Tensor tensor, int peer, const CallOptions& call) override {
    return inner_->receive(tensor, peer, call);
  }
  WorkPtr group(const std::vector<Transfer>& transfers, const CallOptions& call) override {
    return inner_->group(transfers, call);
  }
  WorkPtr barrier(const CallOptions& call) override { return inner_->barrier(call); }
  at::Tensor common_memory(int64_t bytes, const CallOptions& call) override {
    return inner_->common_memory(bytes, call);
  }
  CommunicatorPtr split(int color, int key, const CallOptions& call) override {
    return injected_communicator(inner_->split(color, key, call), injector_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  at::Tensor keep(at::Tensor tensor) {
    kept_.push_back(tensor);
    return tensor;
  }
  at::Tensor recast(const at::Tensor& tensor) { return keep(tensor.to(another(tensor.scalar_type()))); }
  at::Tensor copy(const at::Tensor& tensor) { return keep(tensor.clone()); }
  // One row more.
  at::Tensor longer(const at::Tensor& tensor) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    if (shape.empty()) shape.push_back(1);
    ++shape.front();
    return keep(at::zeros(shape, tensor.options()));
  }
  at::Tensor made(const at::Tensor& part, int count) {
    std::vector<int64_t> shape = part.sizes().vec();
    shape.insert(shape.begin(), count);
    return keep(at::zeros(shape, part.options()));
  }
  WorkPtr kept(WorkPtr work) { return std::make_shared<Kept>(std::move(work), std::move(kept_)); }

  CommunicatorPtr inner_;
  std::shared_ptr<Injector> injector_;
  std::vector<at::Tensor> kept_;
};

}  // namespace

CommunicatorPtr injected_communicator(CommunicatorPtr group, std::shared_ptr<Injector> injector) {
  return std::make_shared<InjectedCommunicator>(std::move(group), std::move(injector));
}

}  // namespace convoy
