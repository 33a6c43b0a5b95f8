#include "core/training/time_report.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "core/control/channel.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr size_t most_waits = 4;  // ranks in the field waits_for of a rank, at most

// Collective. Gathers the arrivals of all ranks, by rank. Zeros extend shorter lists to the length of the longest.
std::vector<std::vector<int64_t>> gathered(const Context& context, const std::vector<int64_t>& mine) {
  Communicator& world = *context.world;
  at::Tensor longest = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  world.all_reduce(longest, ReduceOp::max, {"number of arrivals", {}})->wait();
  const int64_t most = longest.item<int64_t>();
  at::Tensor padded = at::full({most}, int64_t{0}, at::kLong), all = at::empty({world.size(), most}, at::kLong);
  std::copy(mine.begin(), mine.end(), padded.data_ptr<int64_t>());
  world.all_gather(all, padded, {"arrivals", {}})->wait();
  std::vector<std::vector<int64_t>> lists;
  for (int rank = 0; rank < world.size(); ++rank) {
    const int64_t* const from = all.const_data_ptr<int64_t>() + rank * most;
    lists.emplace_back(from, from + most);
  }
  return lists;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

Json time_parts_of(const Context& context) {
  const std::array<double, time_parts> seconds = context.times->seconds();
  Json parts = Json::object();
  for (size_t part = 0; part < time_parts; ++part) parts[name_of(static_cast<TimePart>(part))] = seconds[part];
  return parts;
}

void measure_clock(const Context& context) {
  SupervisedChannel* const channel = context.channel->supervised();
  if (context.size > 1 && channel != nullptr) context.times->set_clock_offset(clock_offset(*channel));
}

Json time_report(const Context& context) {
  if (context.size > 1) {
    measure_clock(context);
    context.times->split_waits(gathered(context, context.times->arrivals()));
  }
  std::vector<std::pair<double, int>> waits;
  for (const auto& [rank, seconds] : context.times->waits()) waits.emplace_back(seconds, rank);
  std::sort(waits.rbegin(), waits.rend());
  if (waits.size() > most_waits) waits.resize(most_waits);
  Json waits_for = Json::array();
  for (const auto& [seconds, rank] : waits) waits_for.push_back({{"rank", rank}, {"seconds", seconds}});
  return {{"times", time_parts_of(context)}, {"waits_for", waits_for}};
}

Json resource_report(const Context& context) {
  return {{"rank", context.rank},
          {"memory_bytes", resident_bytes() / context.process_ranks},
          {"cpu_s", process_cpu_seconds() / context.process_ranks},
          {"times", time_parts_of(context)}};
}

}  // namespace convoy
