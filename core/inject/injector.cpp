#include "core/inject/injector.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <linux/filter.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/files/limits.h"
#include "core/model.h"
#include "core/model_interface.h"

namespace convoy {

// --- Files of a checkpoint: one call finds the disk full ---

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
    // Not GradMode: with activation checkpointing, a block first runs without a graph.
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

// --- Injector: chooses the faults of this rank, and causes them ---

namespace {

using Kind = Fault::Kind;
using Detail = Fault::Detail;

// Leaves a process as a careless library would: no signal to the rank's process group reaches it.
void leave_orphan() {
  if (fork() != 0) return;
  setsid();
  if (fork() != 0) _exit(0);
  while (true) pause();
}

// TCP connections of this process.
std::vector<int> connections() {
  std::vector<int> found;
  for (const std::string& name : names_in("/proc/self/fd")) {
    const int fd = std::atoi(name.c_str());
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || (domain != AF_INET && domain != AF_INET6))
      continue;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM) found.push_back(fd);
  }
  return found;
}

// The kernel drops every packet that arrives on a connection of this process, as if a cable were pulled: no data, no
// acknowledgement and no end of a connection. After `seconds` the network is back, and TCP repeats what was lost.
void cut_network(SupervisedChannel& channel, double seconds) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog filter{1, nothing};
  const std::vector<int> cut = connections();
  for (const int fd : cut) setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  // The filter does not stop packets that leave, and small heartbeats would leave for some time.
  if (seconds <= 0) return channel.stop_sending();
  std::thread([cut, seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const int none = 0;
    for (const int fd : cut) setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
  }).detach();
}

// True for faults that happen in a block's forward pass, not at a point.
bool in_model(const Fault& fault) { return fault.block >= 0 || fault.kind == Kind::nan; }

// True if the point only arms the fault, and the fault happens elsewhere.
bool armed_by_point(const Fault& fault) {
  return in_model(fault) || fault.kind == Kind::mismatch || fault.kind == Kind::enospc;
}

}  // namespace

Injector::Injector(const InjectRequest& request) : request_(request) {
  for (const Fault& fault : faults_from_texts(request.faults, request.size))
    if (fault.concerns(request.rank, request.size, request.attempt)) faults_.push_back({fault});
}

Injector::~Injector() {
  for (const Planned& planned : faults_)
    if (planned.state != State::done)
      log::warning(
          str("injected fault ", planned.fault.text, " did not happen: rank ", request_.rank, " did not reach it"));
}

template <class Wanted>
bool Injector::any(Wanted wanted) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const Planned& planned) { return wanted(planned.fault); });
}

ModelPtr Injector::decorate(ModelPtr model) {
  for (const Planned& planned : faults_) {
    if (planned.fault.block < model->blocks()) continue;
    const std::string message = str("--inject ", planned.fault.text, ": the model has no block ", planned.fault.block,
                                    "; it has 0 to ", model->blocks() - 1);
    faults_.clear();  // the process ends for this error: do not warn of the faults
    throw Error(Failure::command_line, message);
  }
  const bool wanted = any([](const Fault& one) { return in_model(one) || one.detail == Detail::parameters; });
  return wanted ? injected_model(std::move(model), shared_from_this()) : model;
}

CommunicatorPtr Injector::decorate(CommunicatorPtr group) {
  const bool wanted =
      any([](const Fault& one) { return one.kind == Kind::mismatch && one.detail != Detail::parameters; });
  return wanted ? injected_communicator(std::move(group), shared_from_this()) : group;
}

FileSystem& Injector::decorate(FileSystem& files) {
  if (!any([](const Fault& one) { return one.kind == Kind::enospc; })) return files;
  files_ = injected_files(files, *this);
  return *files_;
}

template <class Wanted>
const Fault* Injector::take(State state, Wanted wanted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Planned& planned : faults_) {
    if (planned.state != state || !wanted(planned.fault)) continue;
    planned.state = State::done;
    return &planned.fault;
  }
  return nullptr;
}

void Injector::reached(InjectPoint point, int64_t number) {
  if (point == InjectPoint::step) step_ = number;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Planned& planned : faults_) {
      const Fault& fault = planned.fault;
      const bool here = fault.point == point && fault.number == number;
      // Armed from its step on, the fault acts in the first collective for which the rank waits, maybe in a later step.
      const bool from_here =
          fault.point == InjectPoint::collective && point == InjectPoint::step && number >= fault.number;
      if (planned.state == State::waits && ((here && armed_by_point(fault)) || from_here)) planned.state = State::armed;
    }
  }
  while (const Fault* fault = take(State::waits, [&](const Fault& one) {
           return one.point == point && one.number == number && one.detail != Detail::parameters;
         }))
    act(*fault);
}

void Injector::waiting() {
  if (faults_.empty()) return;
  while (const Fault* fault = take(State::armed, [](const Fault& one) { return one.point == InjectPoint::collective; }))
    act(*fault);
}

bool Injector::forward(int64_t block) {
  bool no_number = false;
  while (const Fault* fault = take(
             State::armed, [&](const Fault& one) { return in_model(one) && (one.block < 0 || one.block == block); })) {
    no_number |= fault->kind == Kind::nan;
    act(*fault);
  }
  return no_number;
}

Detail Injector::next_mismatch() {
  const Fault* fault = take(State::armed, [](const Fault& one) { return one.kind == Kind::mismatch; });
  if (fault == nullptr) return Detail::none;
  report(*fault);
  return fault->detail;
}

bool Injector::must_fail(Detail call) {
  const Fault* fault =
      take(State::armed, [&](const Fault& one) { return one.kind == Kind::enospc && one.detail == call; });
  if (fault != nullptr) report(*fault);
  return fault != nullptr;
}

bool Injector::has_other_parameters() {
  const Fault* fault = take(State::waits, [](const Fault& one) { return one.detail == Detail::parameters; });
  if (fault != nullptr) report(*fault);
  return fault != nullptr;
}

// Reports before the fault happens: afterwards may be too late.
void Injector::report(const Fault& fault) {
  const int64_t step = step_;
  log::warning(str("injected fault ", fault.text, " happens now on rank ", request_.rank,
                   step >= 0 ? str(", step ", step) : std::string()));
  request_.channel->post(injected_topic, Json{{"fault", fault.text},
                                              {"rank", request_.rank},
                                              {"host", request_.host},
                                              {"step", step >= 0 ? Json(step) : Json()},
                                              {"attempt", request_.attempt},
                                              {"seconds", unix_seconds()}});
}

void Injector::act(const Fault& fault) {
  report(fault);
  SupervisedChannel* const channel = request_.channel->supervised();
  switch (fault.kind) {
    case Kind::kill:
      raise(SIGKILL);
      break;
    case Kind::stop:
      raise(SIGSTOP);
      break;
    case Kind::segv:
      raise(SIGSEGV);
      break;
    case Kind::exit:
      _exit(fault.code);
    case Kind::raise:
      throw std::runtime_error(str("the exception that --inject ", fault.text, " requested"));
    case Kind::sleep:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      break;
    case Kind::loop:
      // Without this, the phase would be that of the loader, which runs next. Before the first step the phase stays,
      // because it determines the time limit.
      if (request_.state && fault.block < 0 && fault.point != InjectPoint::join) request_.state->phase("injected loop");
      for (volatile bool forever = true; forever;) std::this_thread::yield();
      break;
    case Kind::drop_heartbeat:
      if (channel) channel->stop_sending();
      break;
    case Kind::cut_network:
      if (channel) cut_network(*channel, fault.seconds);
      break;
    case Kind::orphan:
      leave_orphan();
      break;
    case Kind::nan:
    case Kind::mismatch:
    case Kind::enospc:
      break;  // the caller makes it happen
  }
}

}  // namespace convoy
