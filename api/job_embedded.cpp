// Jobs without a supervisor: one rank of one process, or the ranks of an application that started them itself.
#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>

#include "api/job_impl.h"
#include "api/stall_reporter.h"
#include "backends/catalogue/catalogue.h"
#include "backends/registry.h"
#include "core/base/log.h"
#include "core/config/node.h"
#include "core/config/program.h"
#include "core/control/channel.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

// A state file that no other process reads: its name is removed at once.
struct PrivateState {
  std::shared_ptr<StateFile> file;
  std::shared_ptr<CollectiveRecords> records;
};
PrivateState private_state() {
  PrivateState state;
  with_unnamed_file([&](const std::string& path) {
    state.file = std::make_shared<StateFile>(path);
    state.records = std::make_shared<CollectiveRecords>(path);
  });
  return state;
}

class EmbeddedImpl;
thread_local std::vector<EmbeddedImpl*> jobs_here;  // jobs of this thread, the newest last

class EmbeddedImpl : public Job::Impl {
 public:
  explicit EmbeddedImpl(const EmbeddedRank& rank) : rank_(rank), state_(private_state()) {
    arguments = rank.arguments;
    context.config = embedded_config(rank.arguments, rank.settings);
    context.rank = rank.rank;
    context.size = rank.size;
    context.local_rank = rank.local_rank;
    context.local_size = std::max(rank.local_size, rank.process_ranks);
    context.process_ranks = rank.process_ranks;
    context.host = host_name();
    context.threads = at::get_num_threads();
    context.mesh = Mesh({{"data", rank.size}});
    context.channel = rank.channel;
    context.state = state_.file;
    log::set_level(log::level_named(context.config.log.level));
    context.world = rank.backend.empty() ? make_single_communicator() : connected();
    context.axes["data"] = context.world;
    jobs_here.push_back(this);
    on_uncaught([] {
      if (!jobs_here.back()->ended) jobs_here.back()->fail(translate_exception(Failure::training));
    });
  }

  ~EmbeddedImpl() override {
    jobs_here.erase(std::remove(jobs_here.begin(), jobs_here.end(), this), jobs_here.end());
    if (jobs_here.empty()) on_uncaught(nullptr);
    context = {};  // the groups end before their backend, the channel and its server
    rank_.backends.reset();
    stall_reporter_.reset();
    rank_.channel.reset();
    rank_.holds.reset();
  }

  void end() override { context.world->barrier({"end of the job", {}})->wait(); }

  int fail(const TranslatedException& failure) noexcept override {
    Abort reason;
    reason.kind = failure.kind;
    reason.rank = failure.rank.value_or(context.rank);
    reason.step = state_.records->position().step;
    reason.host = context.host;
    reason.message = failure.message;
    const std::string step = reason.step >= 0 ? str(", step ", reason.step) : "";
    const std::string text = str("rank ", context.rank, " on ", context.host, step, ": ", failure.message);
    failure.kind == Failure::peer_lost ? log::info(text) : log::error(text);
    context.channel->abort(reason);
    context.world->abort(text);
    return exit_code_of(failure.kind);
  }

  bool supervised() const override { return false; }

 private:
  CommunicatorPtr connected() {
    BackendRequest request = backend_request(context);
    request.waiting = [state = state_.file](const char* name) { state->collective(name); };
    request.notes = state_.records;
    request.mpi_communicator = rank_.mpi_communicator;
    if (context.channel->supervised() != nullptr) report_stalls(request);
    return rank_.backends->backends.make(rank_.backend, request);
  }

  // The server of the control channel asks all ranks for their positions, and ends the job with an error that names the
  // stalled rank.
  void report_stalls(BackendRequest& request) {
    stall_reporter_ = StallReporter::create(context.channel, context.rank);
    stall_reporter_->add(context.rank, state_.records);
    request.slow_collective = [reporter = stall_reporter_, channel = context.channel,
                               rank = context.rank](const SlowCollective& call) {
      if (call.over) channel->set(protocol::inquiry, Json{{"id", call.number}, {"stacks", false}}.dump());
      try {
        reporter->report(rank, call);
      } catch (const CommError&) {
        const std::optional<Abort> cause = channel->aborted();
        if (cause && cause->kind == Failure::hang) throw CommError(Failure::hang, cause->rank, cause->message);
        throw;
      }
    };
  }

  EmbeddedRank rank_;
  PrivateState state_;
  std::shared_ptr<StallReporter> stall_reporter_;
};

}  // namespace

std::vector<std::string> process_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

RunConfig embedded_config(const std::vector<std::string>& arguments, const std::vector<std::string>& settings) {
  Catalogues catalogues;
  for (const BackendEntry& entry : backend_catalogue()) catalogues.kinds["backend"].push_back(entry);
  const std::vector<std::string> words = arguments.empty() ? std::vector<std::string>{"program"} : arguments;
  return read_run_tree(program_tree(words, settings, {words.front(), 0, 0}), catalogues);
}

Job embedded_job(const EmbeddedRank& rank) { return Job(std::make_unique<EmbeddedImpl>(rank)); }

Job Job::embedded(const std::vector<std::string>& settings) {
  EmbeddedRank rank;
  rank.channel = make_local_channel();
  rank.settings = settings;
  rank.arguments = process_arguments();
  return embedded_job(rank);
}

}  // namespace convoy
