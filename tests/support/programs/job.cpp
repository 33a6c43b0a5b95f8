// A program of a user, for tests of the library and of its supervision: steps, each an all-reduce and a sleep.
//
//   job [--steps N] [--pause SECONDS] [--at STEP] [--rank RANK] [--do ACTION]
//
// ACTION happens on that rank before that step: throw, catch (an exception that main catches), exit, leave (_exit(0)),
// kill, hang, crash, mesh (a different call), end (of the job, before the other ranks), return (from main without the
// end of the job), nested (starts itself as an independent run), second (creates another Job). `again` creates another
// one after the end of the first.
#include <ATen/Functions.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "api/job_impl.h"

namespace {

struct Wanted {
  int64_t steps = 5, at = -1;
  double pause = 0;
  int rank = 0;
  std::string action;
};

Wanted wanted_of(const std::vector<std::string>& words) {
  Wanted wanted;
  for (size_t i = 1; i + 1 < words.size(); i += 2) {
    const std::string &key = words[i], &value = words[i + 1];
    if (key == "--steps")
      wanted.steps = std::stoll(value);
    else if (key == "--pause")
      wanted.pause = std::stod(value);
    else if (key == "--at")
      wanted.at = std::stoll(value);
    else if (key == "--rank")
      wanted.rank = std::stoi(value);
    else if (key == "--do")
      wanted.action = value;
    else
      throw std::invalid_argument("unknown option " + key);
  }
  return wanted;
}

void act(const std::string& action, convoy::Job& job) {
  if (action == "throw" || action == "catch") throw std::runtime_error("the program broke");
  if (action == "exit") std::exit(0);
  if (action == "leave") _exit(0);
  if (action == "kill") raise(SIGKILL);
  if (action == "crash") raise(SIGSEGV);
  if (action == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
  if (action == "second") {
    std::string name = job.arguments().front();
    char* words[] = {name.data(), nullptr};
    convoy::Job(1, words);
  }
  if (action == "mesh") job.mesh({{"data", job.size()}});
  if (action == "nested") {
    const std::string command = job.arguments().front() + " --steps 2";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("the nested run failed");
  }
}

int run(int argc, char** argv) {
  convoy::Job job(argc, argv);
  const Wanted wanted = wanted_of(job.arguments());
  convoy::Context& context = convoy::context_of(job);
  convoy::StopAgreement stop(context.channel, job.rank(), job.size(), std::chrono::seconds(60));
  int64_t step = 0;
  double total = 0;
  for (; step < wanted.steps; ++step) {
    if (stop.stops_before(step)) {
      job.impl().result.stopped = true;
      break;
    }
    context.state->step(step);
    if (step == wanted.at && job.rank() == wanted.rank) {
      if (wanted.action == "return") {
        new convoy::Job(std::move(job));  // its destructor never runs
        return 0;
      }
      if (wanted.action == "end") break;
      act(wanted.action, job);
    }
    total += job.sum(job.rank() + 1.0).value;
    std::this_thread::sleep_for(std::chrono::duration<double>(wanted.pause));
  }
  job.impl().result.summary["steps"] = step;
  std::printf("rank %d of %d added %g in %lld steps\n", job.rank(), job.size(), total, static_cast<long long>(step));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc > 1 ? argv[argc - 1] : "";
  if (action != "catch" && action != "again") return run(argc, argv);
  try {
    const int code = run(argc, argv);
    return action == "again" ? run(argc, argv) : code;
  } catch (const std::exception& error) {
    std::printf("caught: %s\n", error.what());
    return 0;
  }
}
