// --- Files of a checkpoint: one call finds the disk full ---
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <cerrno>
#include <cstring>
#include <limits>

#include "core/base/error.h"
#include "core/inject/injector.h"
#include "core/model.h"
#include "core/model_interface.h"

namespace convoy {
namespace {

using Detail = Fault::Detail;

[[noreturn]] void no_space(const char* what, const std::string& path) {
  throw Error(Failure::io, "cannot ", what, " ", path, ": ", std::strerror(ENOSPC),
              "; free some space or choose another --output");
}

class InjectedFile : public WritableFile {
 public:
  InjectedFile(std::unique_ptr<WritableFile> inner, std::string path, Injector& injector)
      : inner_(std::move(inner)), path_(std::move(path)), injector_(injector) {}

  void write(const void* data, size_t bytes) override {
    if (injector_.must_fail(Detail::write)) {
      inner_->write(data, bytes / 2);  // the part that still fits
      no_space("write", path_);
    }
    inner_->write(data, bytes);
  }
  void close() override {
    if (injector_.must_fail(Detail::fsync)) no_space("write (fsync)", path_);
    inner_->close();
    if (injector_.must_fail(Detail::close)) no_space("close", path_);
  }

 private:
  std::unique_ptr<WritableFile> inner_;
  std::string path_;
  Injector& injector_;
};

class InjectedFiles : public FileSystem {
 public:
  InjectedFiles(FileSystem& inner, Injector& injector) : inner_(inner), injector_(injector) {}

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<InjectedFile>(inner_.create(path), path, injector_);
  }
  void make_folder(const std::string& path) override { inner_.make_folder(path); }
  void rename(const std::string& from, const std::string& to) override { inner_.rename(from, to); }
  void sync_folder(const std::string& path) override { inner_.sync_folder(path); }
  void remove_all(const std::string& path) override { inner_.remove_all(path); }

 private:
  FileSystem& inner_;
  Injector& injector_;
};

// --- Model: the blocks stay the same, with names and tensors; each forward first checks for faults ---

class InjectedBlock : public Block {
 public:
  InjectedBlock(BlockPtr inner, int64_t index, std::shared_ptr<Injector> injector)
      : inner_(std::move(inner)), index_(index), injector_(std::move(injector)) {
    for (const auto& child : inner_->named_children()) register_module(child.key(), child.value());
    for (const auto& item : inner_->named_parameters(false))
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    for (const auto& item : inner_->named_buffers(false)) register_buffer(item.key(), item.value());
  }

  void train(bool on) override {
    Block::train(on);
    inner_->train(on);
  }

  TensorList forward(const TensorList& inputs) override {
    // Not GradMode: a checkpointed block runs without a graph at first.
    const bool no_number = is_training() && injector_->forward(index_);
    TensorList outputs = inner_->forward(inputs);
    for (at::Tensor& output : outputs)
      if (no_number && output.is_floating_point()) output = output * std::numeric_limits<double>::quiet_NaN();
    return outputs;
  }

  std::unique_ptr<ParameterHandle> more;  // a parameter that other ranks' models lack

 private:
  BlockPtr inner_;
  int64_t index_;
  std::shared_ptr<Injector> injector_;
};

class InjectedModel : public WrappedModel {
 public:
  InjectedModel(ModelPtr inner, std::shared_ptr<Injector> injector)
      : WrappedModel(std::move(inner)), injector_(std::move(injector)) {}

  BlockPtr block(int64_t index, Layers& layers) const override {
    auto block = std::make_shared<InjectedBlock>(wrapped().block(index, layers), index, injector_);
    if (injector_->has_other_parameters()) block->more = layers.parameter("injected", {1}, {Init::Kind::zeros, 0, 0});
    return block;
  }

 private:
  std::shared_ptr<Injector> injector_;
};

// --- Communicator: one collective of this rank differs from its peers' ---

at::ScalarType another(at::ScalarType dtype) { return dtype == at::kDouble ? at::kFloat : at::kDouble; }

class InjectedCommunicator : public Communicator {
 public:
  InjectedCommunicator(CommunicatorPtr inner, std::shared_ptr<Injector> injector)
      : inner_(std::move(inner)), injector_(std::move(injector)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& backend() const override { return inner_->backend(); }
  std::vector<at::DeviceType> devices() const override { return inner_->devices(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  double wait_seconds() const override { return inner_->wait_seconds(); }
  double wait_cpu_seconds() const override { return inner_->wait_cpu_seconds(); }

  // Another operation is a broadcast in place of an all-reduce, and an all-reduce in place of the others.
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) override {
    const Detail detail = injector_->next_mismatch();
    if (detail == Detail::operation) return inner_->broadcast(tensor, 0, call);
    return inner_->all_reduce(changed(tensor, detail), op, call);
  }
  WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) override {
    const Detail detail = injector_->next_mismatch();
    if (detail == Detail::operation) return inner_->all_reduce(input.clone(), ReduceOp::max, call);
    input = changed(input, detail);
    return inner_->all_gather(detail == Detail::none ? output : one_for_each_rank(input), input, call);
  }
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) override {
    const Detail detail = injector_->next_mismatch();
    if (detail == Detail::operation) return inner_->all_reduce(input.clone(), op, call);
    output = changed(output, detail);
    return inner_->reduce_scatter(output, detail == Detail::none ? input : one_for_each_rank(output), op, call);
  }
  WorkPtr broadcast(at::Tensor tensor, int root, const CallOptions& call) override {
    const Detail detail = injector_->next_mismatch();
    if (detail == Detail::operation) return inner_->all_reduce(tensor.clone(), ReduceOp::max, call);
    return inner_->broadcast(changed(tensor, detail), root, call);
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
  // The tensor itself, or one of another dtype, or one with one more row.
  static at::Tensor changed(const at::Tensor& tensor, Detail detail) {
    if (detail == Detail::dtype) return tensor.to(another(tensor.scalar_type()));
    if (detail != Detail::shape) return tensor;
    std::vector<int64_t> shape = tensor.sizes().vec();
    if (shape.empty()) shape.push_back(1);
    ++shape.front();
    return at::zeros(shape, tensor.options());
  }
  at::Tensor one_for_each_rank(const at::Tensor& part) const {
    std::vector<int64_t> shape = part.sizes().vec();
    shape.insert(shape.begin(), size());
    return at::zeros(shape, part.options());
  }

  CommunicatorPtr inner_;
  std::shared_ptr<Injector> injector_;
};

}  // namespace

std::unique_ptr<FileSystem> injected_files(FileSystem& files, Injector& injector) {
  return std::make_unique<InjectedFiles>(files, injector);
}

ModelPtr injected_model(ModelPtr model, std::shared_ptr<Injector> injector) {
  return std::make_shared<InjectedModel>(std::move(model), std::move(injector));
}

CommunicatorPtr injected_communicator(CommunicatorPtr group, std::shared_ptr<Injector> injector) {
  return std::make_shared<InjectedCommunicator>(std::move(group), std::move(injector));
}

}  // namespace convoy
