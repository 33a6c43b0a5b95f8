#include <ATen/Functions.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "api/job_impl.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/control/assignment.h"

namespace convoy {
namespace {

std::string mesh_text(const MeshAxes& axes) {
  std::vector<std::string> texts;
  for (const auto& [name, degree] : axes) texts.push_back(str(name, ": ", degree));
  return str("{", join(texts, ", "), "}");
}

// Collective. Throws an error that names the first rank whose text differs from that of rank 0.
void check_equal(Communicator& world, const std::string& call, const std::string& text) {
  constexpr int64_t room = 512;
  at::Tensor mine = at::zeros({room}, at::kByte);
  std::memcpy(mine.data_ptr(), text.data(), std::min<size_t>(text.size(), room));
  at::Tensor all = at::empty({world.size(), room}, at::kByte);
  world.all_gather(all, mine, {call, {}})->wait();
  const auto text_of = [&](int rank) {
    const char* const begin = static_cast<const char*>(all.data_ptr()) + rank * room;
    return std::string(begin, strnlen(begin, room));
  };
  for (int rank = 1; rank < world.size(); ++rank)
    if (text_of(rank) != text_of(0))
      throw CommError(Failure::disagreement, rank, "rank ", rank, " called ", call, "(", text_of(rank), ") and rank 0 ",
                      call, "(", text_of(0), "); all ranks must give the same");
}

}  // namespace

Job::Job(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) { impl_->exceptions = std::uncaught_exceptions(); }

Job::Job(Job&&) noexcept = default;

void Lifetime::check_end(const char* object, const char* users) const {
  if (users_.use_count() == 1 || std::uncaught_exceptions() > 0) return;  // an exception has its own message
  log::error(str(object, " is destroyed before ", users, ", which still uses it; destroy it after them"));
  std::abort();
}

Job::~Job() {
  if (!impl_) return;
  impl_->lifetime.check_end("the Job", "a Replicas, Shards or Run");
  if (impl_->ended) return;
  if (std::uncaught_exceptions() > impl_->exceptions) {
    // A rank that lost a peer is no cause.
    const std::shared_ptr<Channel>& channel = impl_->context.channel;  // null: after a lost peer
    const std::optional<Abort> cause =
        channel ? channel->aborted() : Abort{Failure::peer_lost, -1, -1, 0, "", "a peer was lost"};
    impl_->fail(cause ? TranslatedException{Failure::peer_lost, cause->message}
                      : TranslatedException{Failure::training,
                                            "an exception left the scope of the Job; the output of the program has "
                                            "its text"});
    impl_->leave();
    return;
  }
  try {
    finish();
  } catch (...) {
    const int code = impl_->fail(translate_exception(Failure::training));
    impl_->leave();
    if (!impl_->supervised()) return;
    std::fflush(nullptr);
    _exit(code);
  }
}

void Job::finish() {
  if (impl_->ended) return;
  impl_->end();
  impl_->ended = true;
  impl_->leave();
}

void Job::Impl::enter_loop(bool enters) {
  in_loop = enters;
  joined = joined && enters;
  if (continues() && enters) context.channel->set(str(protocol::in_loop, context.rank), "1");
}

void check_others_call(const Job::Impl& job, const char* call) {
  if (job.joins())
    throw Error(Failure::config, call,
                ": this rank joins a running job (launch.min_ranks), whose other ranks are in Run::each_batch and do "
                "not make this call; communicate in the body of each_batch only");
}

int Job::rank() const { return impl_->context.rank; }
int Job::size() const { return impl_->context.size; }
int Job::local_rank() const { return impl_->context.local_rank; }
c10::Device Job::device() const { return impl_->context.devices.front(); }
const std::vector<std::string>& Job::arguments() const { return impl_->arguments; }
CommunicatorPtr Job::world() const {
  check_others_call(*impl_, "Job::world");
  return impl_->context.world;
}

std::map<std::string, CommunicatorPtr> Job::mesh(const MeshAxes& axes) {
  Context& context = impl_->context;
  check_others_call(*impl_, "Job::mesh");
  if (impl_->continues())
    for (const auto& [name, degree] : axes)
      if (name != "data" && degree > 1)
        throw Error(Failure::config, "Job::mesh(", mesh_text(axes), "): launch.min_ranks is ",
                    context.config.launch.min_ranks, ", and the axis ", name,
                    " would lose a rank that no other replaces; use the axis data only, or set launch.min_ranks=0");
  check_equal(*context.world, "Job::mesh", mesh_text(axes));
  std::vector<Axis> described;
  for (const auto& [name, degree] : axes) described.push_back({name, degree});
  const Mesh mesh(described);
  if (mesh.size() != context.size)
    throw Error(Failure::config, "Job::mesh(", mesh_text(axes), ") has ", mesh.size(), " ranks, and this job has ",
                context.size, "; choose degrees whose product is the number of ranks");
  const int number = impl_->meshes++;
  std::map<std::string, CommunicatorPtr> groups;
  for (const Axis& axis : mesh.axes()) {
    const std::vector<int> group = mesh.group(context.rank, axis.name);
    // An axis over all ranks is the world.
    groups[axis.name] = static_cast<int>(group.size()) == context.size
                            ? context.world
                            : context.world->split(group.front(), context.rank,
                                                   {str("axis ", axis.name, number > 0 ? str(" ", number) : ""), {}});
  }
  context.mesh = mesh;
  context.axes = groups;
  return groups;
}

Sum Job::sum(double value, double weight) const {
  check_others_call(*impl_, "Job::sum");
  at::Tensor sums = at::tensor({value, weight}, at::kDouble).to(device());
  impl_->context.world->all_reduce(sums, ReduceOp::sum, {"Job::sum", {}})->wait();
  sums = sums.to(at::kCPU);
  return {sums[0].item<double>(), sums[1].item<double>()};
}

Sum Job::sum(const at::Tensor& value, double weight) const {
  if (value.numel() != 1)
    throw Error(Failure::training, "Job::sum needs one number, got a tensor of ", value.numel(),
                " elements; reduce larger tensors by world()->all_reduce");
  return sum(value.item<double>(), weight);
}

}  // namespace convoy
