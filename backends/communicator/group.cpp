// Argument checks, flat views and byte counts of every communicator; the transport moves the data.
#include "backends/communicator/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "backends/communicator/call.h"
#include "backends/communicator/group_state.h"

namespace convoy {
namespace {

// Detaches: communication is not differentiable, strategies handle gradients.
at::Tensor plain(const at::Tensor& tensor) { return tensor.requires_grad() ? tensor.detach() : tensor; }

int64_t bytes_of(const at::Tensor& tensor) { return int64_t(tensor.nbytes()); }

// Return a flat view of a contiguous tensor: as bytes, or in its dtype for reductions.
at::Tensor as_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::empty({0}, tensor.options().dtype(at::kByte));
  return tensor.view({-1}).view(at::kByte);
}
at::Tensor as_numbers(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return as_bytes(tensor);
  return tensor.dim() == 1 ? tensor : tensor.view({-1});
}

// A bool is a byte 0 or 1: "or" is the maximum, "and" the minimum.
ReduceOp on_bytes(ReduceOp op, at::ScalarType dtype) {
  if (dtype != at::kBool) return op;
  return op == ReduceOp::sum || op == ReduceOp::max ? ReduceOp::max : ReduceOp::min;
}

Offsets offsets(const std::vector<int64_t>& rows, int64_t row_bytes) {
  Offsets all(rows.size() + 1, 0);
  for (size_t i = 0; i < rows.size(); ++i) all[i + 1] = all[i] + rows[i] * row_bytes;
  return all;
}

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

// Returns the bytes of one row of dimension 0; of the element if the tensor has no dimension.
int64_t row_bytes(const at::Tensor& tensor) {
  int64_t bytes = tensor.element_size();
  for (int64_t d = 1; d < tensor.dim(); ++d) bytes *= tensor.size(d);
  return bytes;
}

void check_reducible(const Call& call) {
  static const at::ScalarType all[] = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
                                       at::kInt,  at::kLong,     at::kByte,  at::kBool};
  CONVOY_CHECK(std::find(std::begin(all), std::end(all), call.dtype) != std::end(all), describe_call(call),
               ": this dtype cannot be reduced");
}

}  // namespace

GroupCommunicator::GroupCommunicator(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport)
    : state_(std::move(state)), transport_(std::move(transport)) {
  devices_ = transport_->devices();
  const bool takes_host = std::find(devices_.begin(), devices_.end(), at::kCPU) != devices_.end();
  if (!takes_host) staged_ = state_->facts().device;
}
GroupCommunicator::~GroupCommunicator() = default;

int GroupCommunicator::rank() const { return state_->facts().rank; }
int GroupCommunicator::size() const { return state_->facts().size; }
const std::string& GroupCommunicator::backend() const { return state_->facts().backend; }
int64_t GroupCommunicator::bytes_sent() const { return state_->bytes; }
double GroupCommunicator::wait_seconds() const { return 1e-9 * double(state_->wait_nanoseconds); }
double GroupCommunicator::wait_cpu_seconds() const { return 1e-9 * double(state_->wait_cpu_nanoseconds); }

std::vector<at::DeviceType> GroupCommunicator::devices() const { return devices_; }

Call GroupCommunicator::start(Operation operation, const CallOptions& options, const at::Tensor& input) const {
  Call call{operation, options.name, options.timeout};
  if (call.timeout.count() <= 0) call.timeout = state_->facts().timeout;
  if (input.defined()) {
    call.has_tensor = true;
    call.dtype = input.scalar_type();
    call.elements = input.numel();
    call.shape = c10::DimVector(input.sizes());
  }
  return call;
}

template <class Issue>
WorkPtr GroupCommunicator::launch(Call call, Staging staging, Issue issue) {
  std::lock_guard lock(state_->issue);
  const int64_t number = state_->record_call(call);
  if (auto failure = state_->failure()) {
    return make_finished_work(
        std::make_exception_ptr(CommError(failure->kind(), failure->rank(), state_->who(), ": ", describe_call(call),
                                          " was not started: ", failure->what())));
  }
  std::optional<TimeBreakdown::Scope> counted;
  TimeBreakdown* const times = state_->facts().times.get();
  if (times != nullptr) counted.emplace(*times, TimePart::communication);
  PendingOperationPtr pending;
  try {
    CollectiveCheck* check = number > 0 ? state_->check() : nullptr;
    const bool later = check != nullptr && check->must_defer(call) && !transport_->must_begin_now();
    pending = later ? check->defer(call, issue) : issue(call);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // A library's exception at the call is reported like its later failures: by the wait.
    return make_finished_work(std::make_exception_ptr(CommError(
        Failure::peer_lost, -1, state_->who(), ": ", describe_call(call), ": ", message_without_backtrace(error))));
  }
  if (counted && counted->counts()) {
    const int64_t from = counted->from(), to = counted->end();
    if (TraceLog* const trace = times->trace())
      trace->add({"", str(name_of(call.operation), call.name.empty() ? "" : " " + call.name), "collective", from, to,
                  call.elements * int64_t(c10::elementSize(call.dtype))});
  }
  return make_work(state_, transport_, std::move(call), std::move(staging), std::move(pending));
}

WorkPtr GroupCommunicator::all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& options) {
  Call call = start(Operation::all_reduce, options, tensor);
  check_reducible(call);
  call.set_reduction(op);
  if (tensor.numel() == 0) return make_finished_work();
  state_->add_bytes_sent(2 * (size() - 1) * bytes_of(tensor) / size());
  Staging staging(transport_->reduction_devices(), staged_);
  at::Tensor flat = as_numbers(staging.output(plain(tensor), true));
  op = on_bytes(op, call.dtype);
  return launch(std::move(call), std::move(staging),
                [to = transport_, flat, op](const Call& c) { return to->all_reduce(c, flat, op); });
}

WorkPtr GroupCommunicator::gather(Operation operation, at::Tensor output, at::Tensor input,
                                  const std::vector<int64_t>& rows, const CallOptions& options) {
  Call call = start(operation, options, input);
  CONVOY_CHECK(output.scalar_type() == input.scalar_type(), describe_call(call), ": output has another dtype");
  if (output.numel() == 0) return make_finished_work();
  state_->add_bytes_sent((size() - 1) * bytes_of(input));
  Staging staging(devices_, staged_);
  Offsets bounds = offsets(rows, row_bytes(output));
  at::Tensor from = as_bytes(staging.input(plain(input)));
  at::Tensor to = as_bytes(staging.output(plain(output)));
  if (operation == Operation::all_gather_v) {
    call.shape = c10::DimVector(input.sizes().slice(1));
    call.counts = rows;
  }
  return launch(std::move(call), std::move(staging), [transport = transport_, to, bounds, from](const Call& c) {
    return transport->all_gather(c, to, bounds, from);
  });
}

WorkPtr GroupCommunicator::all_gather(at::Tensor output, at::Tensor input, const CallOptions& options) {
  CONVOY_CHECK(output.dim() == input.dim() + 1 && output.size(0) == size() && output.sizes().slice(1) == input.sizes(),
               "all_gather '", options.name, "': output has shape ", output.sizes(), ", wanted [", size(), ", …",
               input.sizes(), "]");
  return gather(Operation::all_gather, output, input, std::vector<int64_t>(size(), 1), options);
}

WorkPtr GroupCommunicator::all_gather_v(at::Tensor output, at::Tensor input, const std::vector<int64_t>& counts,
                                        const CallOptions& options) {
  CONVOY_CHECK(int(counts.size()) == size(), "all_gather_v '", options.name, "': ", counts.size(), " counts for ",
               size(), " ranks");
  CONVOY_CHECK(input.dim() > 0 && output.dim() > 0 && input.size(0) == counts[rank()] &&
                   output.size(0) == sum(counts) && input.sizes().slice(1) == output.sizes().slice(1),
               "all_gather_v '", options.name, "': input ", input.sizes(), " and output ", output.sizes(),
               " do not fit the counts [", at::IntArrayRef(counts), "]");
  return gather(Operation::all_gather_v, output, input, counts, options);
}

WorkPtr GroupCommunicator::all_to_all_v(at::Tensor output, const std::vector<int64_t>& output_counts, at::Tensor input,
                                        const std::vector<int64_t>& input_counts, const CallOptions& options) {
  Call call = start(Operation::all_to_all_v, options, input);
  CONVOY_CHECK(int(output_counts.size()) == size() && int(input_counts.size()) == size() && input.dim() > 0 &&
                   output.dim() > 0 && input.size(0) == sum(input_counts) && output.size(0) == sum(output_counts) &&
                   input.sizes().slice(1) == output.sizes().slice(1) && input.scalar_type() == output.scalar_type(),
               describe_call(call), ": input ", input.sizes(), " and output ", output.sizes(),
               " do not fit the counts");
  int64_t row = row_bytes(input);
  state_->add_bytes_sent((input.size(0) - input_counts[rank()]) * row);
  Staging staging(devices_, staged_);
  at::Tensor from = as_bytes(staging.input(plain(input)));
  at::Tensor to = as_bytes(staging.output(plain(output)));
  call.shape = c10::DimVector(input.sizes().slice(1));
  call.set_exchange(rank(), input_counts, output_counts);
  return launch(std::move(call), std::move(staging),
                [transport = transport_, to, to_bounds = offsets(output_counts, row), from,
                 from_bounds = offsets(input_counts, row)](const Call& c) {
                  return transport->all_to_all(c, to, to_bounds, from, from_bounds);
                });
}

WorkPtr GroupCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op,
                                          const CallOptions& options) {
  Call call = start(Operation::reduce_scatter, options, input);
  check_reducible(call);
  call.set_reduction(op);
  CONVOY_CHECK(input.dim() == output.dim() + 1 && input.size(0) == size() && input.sizes().slice(1) == output.sizes() &&
                   input.scalar_type() == output.scalar_type(),
               describe_call(call), ": input has shape ", input.sizes(), ", wanted [", size(), ", …", output.sizes(),
               "]");
  if (output.numel() == 0) return make_finished_work();
  state_->add_bytes_sent((size() - 1) * bytes_of(input) / size());
  Staging staging(transport_->reduction_devices(), staged_);
  at::Tensor from = as_numbers(staging.input(plain(input)));
  at::Tensor to = as_numbers(staging.output(plain(output)));
  op = on_bytes(op, call.dtype);
  return launch(std::move(call), std::move(staging), [transport = transport_, to, from, op](const Call& c) {
    return transport->reduce_scatter(c, to, from, op);
  });
}

WorkPtr GroupCommunicator::broadcast(at::Tensor tensor, int root, const CallOptions& options) {
  Call call = start(Operation::broadcast, options, tensor);
  CONVOY_CHECK(root >= 0 && root < size(), describe_call(call), ": root ", root, " of ", size());
  call.set_root(root);
  if (tensor.numel() == 0) return make_finished_work();
  if (rank() == root) state_->add_bytes_sent((size() - 1) * bytes_of(tensor));
  Staging staging(devices_, staged_);
  bool sends = rank() == root;
  at::Tensor flat = as_bytes(sends ? staging.input(plain(tensor)) : staging.output(plain(tensor)));
  return launch(std::move(call), std::move(staging),
                [to = transport_, flat, root](const Call& c) { return to->broadcast(c, flat, root); });
}

WorkPtr GroupCommunicator::transfer(Operation operation, const std::vector<Transfer>& transfers,
                                    const CallOptions& options) {
  Call call = start(operation, options, transfers.empty() ? at::Tensor() : transfers[0].tensor);
  Staging staging(devices_, staged_);
  std::vector<Transfer> remote, to_self;
  for (const Transfer& one : transfers) {
    CONVOY_CHECK(one.peer >= 0 && one.peer < size(), describe_call(call), ": peer ", one.peer, " of ", size());
    if (one.peer == rank()) {
      to_self.push_back(one);
      continue;
    }
    if (one.tensor.numel() == 0) continue;  // the peer skips it too
    bool sends = one.kind == Transfer::Kind::send;
    if (sends) state_->add_bytes_sent(bytes_of(one.tensor));
    at::Tensor given = sends ? staging.input(plain(one.tensor)) : staging.output(plain(one.tensor));
    remote.push_back({one.kind, as_bytes(given), one.peer});
  }
  if (!to_self.empty()) serve_self(call, to_self)->wait();
  if (remote.empty()) return make_finished_work();
  if (remote.size() == 1) call.peer = remote.front().peer;
  return launch(std::move(call), std::move(staging),
                [to = transport_, remote](const Call& c) { return to->exchange(c, remote); });
}

// Keeps a copy of a message to this rank itself until this rank receives it.
WorkPtr GroupCommunicator::serve_self(const Call& call, const std::vector<Transfer>& transfers) {
  std::lock_guard lock(state_->issue);
  for (const Transfer& one : transfers) {
    if (one.kind == Transfer::Kind::send) to_self_.push_back(plain(one.tensor).clone());
  }
  for (const Transfer& one : transfers) {
    if (one.kind == Transfer::Kind::send) continue;
    CONVOY_CHECK(!to_self_.empty(), describe_call(call), ": a rank receives from itself what it has not sent yet");
    plain(one.tensor).copy_(to_self_.front());
    to_self_.erase(to_self_.begin());
  }
  return make_finished_work();
}

WorkPtr GroupCommunicator::send(at::Tensor tensor, int peer, const CallOptions& options) {
  return transfer(Operation::send, {{Transfer::Kind::send, std::move(tensor), peer}}, options);
}

WorkPtr GroupCommunicator::receive(at::Tensor tensor, int peer, const CallOptions& options) {
  return transfer(Operation::receive, {{Transfer::Kind::receive, std::move(tensor), peer}}, options);
}

WorkPtr GroupCommunicator::group(const std::vector<Transfer>& transfers, const CallOptions& options) {
  return transfer(Operation::group, transfers, options);
}

WorkPtr GroupCommunicator::barrier(const CallOptions& options) {
  return launch(start(Operation::barrier, options, {}), Staging({at::kCPU}, at::kCPU),
                [to = transport_](const Call& c) { return to->barrier(c); });
}

CommunicatorPtr GroupCommunicator::split(int color, int key, const CallOptions& options) {
  Call call = start(Operation::split, options, {});
  // One all-gather distributes all colours and keys; each rank derives its group from them.
  int64_t mine[] = {color, key, transport_->propose()};
  at::Tensor all = at::empty({size(), 3}, at::kLong);
  gather(Operation::split, all, at::from_blob(mine, {3}, at::kLong), std::vector<int64_t>(size(), 1), options)->wait();
  const int64_t* rows = all.const_data_ptr<int64_t>();
  int64_t agreed = 0;
  std::vector<int> members;
  for (int rank = 0; rank < size(); ++rank) {
    if (rows[3 * rank] == color) members.push_back(rank);
    agreed = std::max(agreed, rows[3 * rank + 2]);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return rows[3 * a + 1] < rows[3 * b + 1]; });
  GroupFacts facts = state_->facts();
  {
    std::lock_guard lock(state_->issue);
    facts.label = str(facts.label, "/", splits_++, ".", color);  // counted on every rank, so labels stay equal
  }
  if (members.size() == 1) return make_single_communicator(backend());
  facts.rank = int(std::find(members.begin(), members.end(), rank()) - members.begin());
  facts.size = int(members.size());
  facts.parent = state_;
  facts.members.clear();
  for (int member : members) facts.members.push_back(state_->facts().members[size_t(member)]);
  auto transport = transport_->split(members, facts.rank, facts.label, agreed, call.timeout);
  auto state = std::make_shared<GroupState>(facts, transport);
  return std::make_shared<GroupCommunicator>(state, transport);
}

at::Tensor GroupCommunicator::common_memory(int64_t bytes, const CallOptions& options) {
  return transport_->common_memory(bytes, options.timeout.count() > 0 ? options.timeout : state_->facts().timeout);
}

void GroupCommunicator::abort(const std::string& reason) {
  state_->fail(reason);
  state_->facts().abort_notifier->notify_peers(state_->facts().label, reason);
}

CommunicatorPtr make_world(const BackendRequest& request, const std::string& backend,
                           std::shared_ptr<Transport> transport) {
  if (request.size == 1) return make_single_communicator(backend);
  GroupFacts facts{request};
  facts.backend = backend;
  facts.label = "world";
  facts.abort_notifier = AbortNotifier::create(request.channel, request.job);
  facts.members.resize(size_t(request.size));
  std::iota(facts.members.begin(), facts.members.end(), 0);
  auto state = std::make_shared<GroupState>(facts, transport);
  return std::make_shared<GroupCommunicator>(state, std::move(transport));
}

}  // namespace convoy
