// Jobs that are queued: several runs of one file, each with a configuration of its own, that wait for a slot, run as a
// `convoy run` of their own in it, and may be limited, tried again or put off for a more urgent one. Made by a strategy,
// run by whatever launches; without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

// How a pipeline waits, where it may run, and what ends it.
struct QueueTerms {
  int64_t priority = 0;        // a larger one goes first
  bool preempt = false;        // may stop running ones of a smaller priority after their step; they go on later
  int64_t retries = 0;         // after a failure, so often again
  double backoff = 1;          // seconds before the first retry, doubled for each further one
  double timeout = 0;          // seconds that an attempt may take; 0: any
  int64_t memory = 0;          // bytes of anonymous memory of all its processes together; 0: any
  int64_t gpu_memory = 0;      // bytes on each of its GPUs; 0: any
  int nice = 0;                // added to the processes' niceness
  int cores = 0;               // how many; 0: one for each rank that its configuration asks for
  std::vector<int> core_list;  // processing units, where it names them; then `cores` is their number
  int gpus = -1;               // how many; -1: one for each rank, where there are any
  std::vector<int> gpu_list;   // Gpu::index, where it names them
  double share = 1;            // part of its cores and GPUs that it takes; below 1: others may have the rest
  double estimate = 0;         // seconds it may take, longest first within a priority; 0: not known
};
Json to_json(const QueueTerms& terms);  // in the form of queue_options (core/config/queue_terms.h)

struct Pipeline {
  std::string name;  // of its folder too
  Json config;       // resolved (RunConfig::resolved), marks included; its strategy plans within its slot
  QueueTerms terms;
  Mark mark;            // where it was written
  Json grid = nullptr;  // of a point of a grid: its values by key path
};

struct Farm {
  std::vector<Pipeline> pipelines;  // names differ
  int max_parallel = 0;             // at a time; 0: as slots allow
  std::string metric;               // that the leaderboard is sorted by; "": none was chosen
  std::string direction = "auto";   // auto | maximize | minimize
};

}  // namespace convoy
