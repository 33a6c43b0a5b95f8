// Options of a farm's file: those of the queue, and the entry for the catalogue of strategies. Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/options.h"

namespace convoy {

struct Node;  // core/config/node.h

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
Json to_json(const QueueOptions& options);  // in the form of queue_options

// Options of the queue. `defaults`: with default values. Otherwise an omitted option is null and keeps its earlier
// value.
std::vector<Option> queue_options(bool defaults);
std::vector<Option> added_pipeline_options();  // options in a file for `convoy add`
// Returns `options`, changed by the values of `written` (read with queue_options). Throws ConfigError at the key for
// invalid cores or GPUs.
QueueOptions with_queue_options(QueueOptions options, const Options& written);

inline constexpr char farm_strategy[] = "independent";
constexpr int64_t most_grid_points = 10'000;
Entry farm_entry();  // for the catalogue of strategies

bool is_farm(const Node& root);  // the file describes several runs
// Throws ConfigError if the file describes several runs or is for `convoy add`; for commands that take one run.
void refuse_several(const Node& root, const std::string& path);

}  // namespace convoy
