// Job(argc, argv): a rank that `convoy` supervises, or the start of one.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "api/job_impl.h"
#include "api/rank_process.h"
#include "backends/catalogue/catalogue.h"
#include "backends/registry.h"
#include "core/base/log.h"
#include "core/control/assignment.h"
#include "core/control/exit_codes.h"
#include "core/data/catalogue/catalogue.h"
#include "core/files/files.h"
#include "core/losses/catalogue/catalogue.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/rank_state/position.h"
#include "models/catalogue/catalogue.h"
#include "models/registry.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

[[noreturn]] void end_process(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
}

[[noreturn]] void refuse_start(int code, const std::string& message) {
  std::cerr << message << '\n';
  end_process(code);
}

// --- Handing over to `convoy` ---

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

bool is_executable(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

// Returns the path of `convoy`: the variable CONVOY; or in the installation of this library (bin/ next to lib/, or the
// build folder); or in PATH.
std::string installed_convoy() {
  if (const char* named = std::getenv("CONVOY"); named != nullptr && *named != '\0') {
    if (is_executable(named)) return named;
    const int code = access(named, F_OK) == 0 ? exit_code::cannot_execute : exit_code::not_found;
    refuse_start(code, str("CONVOY is ", named, ", which is no program that can be executed; unset it, or let it name ",
                           "the program convoy"));
  }
  Dl_info info{};
  std::vector<std::string> candidates;
  char path[4096];
  if (dladdr(reinterpret_cast<const void*>(&started_by_convoy), &info) != 0 &&
      realpath(info.dli_fname, path) != nullptr) {
    const std::string folder = folder_of(path);
    candidates = {folder_of(folder) + "/bin/convoy", folder + "/convoy", folder_of(folder) + "/convoy"};
  }
  const char* search = std::getenv("PATH");
  for (const std::string& folder : split(search != nullptr ? search : "", ':'))
    if (!folder.empty()) candidates.push_back(folder + "/convoy");
  for (const std::string& candidate : candidates)
    if (is_executable(candidate)) return candidate;
  refuse_start(exit_code::not_found,
               str("the program convoy, which supervises this one, is not in the installation of libconvoy",
                   candidates.empty() ? "" : str(" (", candidates.front(), ")"),
                   " nor in PATH; name it by the variable CONVOY=/path/to/convoy"));
}

[[noreturn]] void hand_over(int argc, char** argv) {
  const std::string convoy = installed_convoy();
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) refuse_start(exit_code::io, "cannot read /proc/self/exe; is /proc mounted?");
  program[length] = '\0';
  std::string run = "run", dashes = "--", name = convoy;
  std::vector<char*> words{name.data(), run.data(), dashes.data(), program};
  for (int i = 1; i < argc; ++i) words.push_back(argv[i]);
  words.push_back(nullptr);
  execv(convoy.c_str(), words.data());
  refuse_start(exit_code::cannot_execute, str("cannot start ", convoy, ": ", std::strerror(errno)));
}

// --- A rank ---

class SupervisedImpl : public Job::Impl {
 public:
  // Ends the process if the rank cannot start.
  SupervisedImpl(int argc, char** argv) {
    arguments.assign(argv, argv + argc);
    prepare_process();
    setenv(protocol::joined_variable, "1", 1);
    try {
      process_ = std::make_unique<RankProcess>();
    } catch (...) {
      const TranslatedException failure = translate_exception(Failure::internal);
      refuse_start(exit_code_of(failure.kind), failure.message);
    }
    try {
      process_->assign();
      allow_shared_memory(process_->assignment().job.config.launch.host_memory);
      registry_ = builtin_registry();
      process_->open(starting_phase);
    } catch (...) {
      end_process(process_->fail());
    }
    try {
      CONVOY_CHECK(process_->ranks().size() == 1, "a program is one rank, and its process has ",
                   process_->ranks().size());
      joined = process_->assignment().membership > 0;
      context = joined ? rank().prepare() : rank().start(registry_);
      injector = rank().injector();
      if (!joined) context.state->phase("running");
    } catch (...) {
      end_process(rank().fail(translate_exception(Failure::training)));
    }
    on_early_end([this](const char* reason) {
      return fail(reason != nullptr ? TranslatedException{Failure::training, reason}
                                    : translate_exception(Failure::training));
    });
  }

  ~SupervisedImpl() override {
    leave();
    context = {};  // the groups end before their backend and the channel
    injector.reset();
  }

  void end() override {
    check_others_call(*this, "Job::finish");
    rank().end(context, result);
  }
  int fail(const TranslatedException& failure) noexcept override {
    if (process_->ranks().empty()) return exit_code_of(failure.kind);  // between two memberships of the job
    return rank().fail(failure);
  }
  void leave() noexcept override {
    on_early_end(nullptr);
    ended = true;
  }
  bool supervised() const override { return true; }

  bool continues() const override { return continues_without_lost_ranks(process_->assignment()); }
  void connect() override {
    if (context.world) return;
    rank().join(context, registry_);
    context.state->phase("running");
  }
  bool leave_membership() override {
    context.world.reset();
    context.axes.clear();
    context.channel.reset();
    injector.reset();
    if (!process_->join_next()) return false;
    context = rank().prepare();
    injector = rank().injector();
    return true;
  }

 private:
  Rank& rank() { return *process_->ranks().front(); }

  std::unique_ptr<RankProcess> process_;
  Registry registry_;  // destroyed before process_, because it ends the backends
};

}  // namespace

Registry builtin_registry(bool few_rows) {
  Registry registry;
  std::map<std::string, std::vector<Entry>>& kinds = registry.catalogues.kinds;
  kinds["model"] = model_catalogue();
  kinds["data"] = dataset_catalogue();
  kinds["transform"] = transform_catalogue();
  kinds["loss"] = loss_catalogue();
  kinds["optimizer"] = optimizer_catalogue();
  kinds["schedule"] = schedule_catalogue();
  kinds["strategy"] = strategy_entries();
  for (const BackendEntry& backend : backend_catalogue()) kinds["backend"].push_back(backend);
  register_core(registry, few_rows);
  register_models(registry);
  register_strategies(registry);
  register_backends(registry);
  return registry;
}

Job::Job(int argc, char** argv) {
  static std::atomic<bool> created{false};
  // The environment no longer shows that `convoy` started this process, so a second Job would start it again.
  if (created.exchange(true))
    throw Error(
        Failure::config,
        "a second convoy::Job(argc, argv) in this process, which can be one rank of one job only; create the Job "
        "once, first in main(), and pass it on by reference");
  if (!started_by_convoy()) hand_over(argc, argv);
  impl_ = std::make_unique<SupervisedImpl>(argc, argv);
  impl_->exceptions = std::uncaught_exceptions();
}

}  // namespace convoy
