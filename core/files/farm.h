// Farm: several runs from one file (`strategy: independent`). Each pipeline waits for a slot and runs there as its
// own `convoy run`. It can have limits, be retried, or be preempted by a pipeline of higher priority. A strategy
// makes the farm; launch/farm runs it. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {

// Queue options of a pipeline: when it starts, where it may run, and what ends it.
struct QueueOptions {
  int64_t priority = 0;        // larger first
  bool preempt = false;        // may stop running pipelines of lower priority after their step; they resume later
  int64_t retries = 0;         // number of new starts after failures
  double backoff = 1;          // seconds before the first retry; doubled for each further one
  double timeout = 0;          // time limit of an attempt in seconds; 0: none
  int64_t memory = 0;          // limit of anonymous memory of all its processes together, in bytes; 0: none
  int64_t gpu_memory = 0;      // limit on each of its GPUs, in bytes; 0: none
  int nice = 0;                // added to the processes' niceness
  int cores = 0;               // number of cores; 0: one for each rank of its configuration
  std::vector<int> core_list;  // hardware threads, if listed; then `cores` is their number
  int gpus = -1;               // number of GPUs; -1: one for each rank, if the host has any
  std::vector<int> gpu_list;   // Gpu::index, if listed
  double share = 1;            // part of its cores and GPUs that it uses; below 1: others may use the rest
  double estimate = 0;         // expected duration in seconds; longest first within a priority; 0: unknown
};
Json to_json(const QueueOptions& options);  // in the form of queue_options (core/config/pipeline_texts.h)

struct Pipeline {
  std::string name;  // also the name of its folder
  Json config;       // resolved (RunConfig::resolved), with marks; its strategy plans within its slot
  QueueOptions options;
  SourceLocation mark;  // where the user wrote it
  Json grid = nullptr;  // values by key path, for a point of a grid
};

struct Farm {
  std::vector<Pipeline> pipelines;  // names differ
  int max_parallel = 0;             // pipelines at a time; 0: as many as slots allow
  std::string metric;               // sorts the leaderboard; "": none chosen
  std::string direction = "auto";   // auto | maximize | minimize
};

// --- The folder of a farm ---

// Run folders of the pipelines, in order; empty if `folder` is not the folder of a farm.
std::vector<std::string> pipeline_folders(const std::string& folder);

}  // namespace convoy
