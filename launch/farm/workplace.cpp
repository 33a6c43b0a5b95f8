#include "launch/farm/workplace.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "launch/descendants.h"
#include "launch/gpu_memory.h"

namespace convoy {

Json to_json(const PipelineOrder& order) {
  return {
      {"job", order.job},   {"name", order.name},           {"folder", order.folder}, {"cores", order.cores},
      {"gpus", order.gpus}, {"hide_gpus", order.hide_gpus}, {"memory", order.memory}, {"gpu_memory", order.gpu_memory},
      {"nice", order.nice}, {"inject", Json(order.faults)}};
}

// Each rank's allocator is held to the limit; this is for what goes round it.
int64_t watched_gpu_memory(const PipelineOrder& order) {
  return order.gpu_memory > 0 ? (order.gpu_memory + outside_allocator) * static_cast<int64_t>(order.gpus.size()) : 0;
}

PipelineOrder order_from_json(const Json& json) {
  PipelineOrder order;
  order.job = json.at("job").get<int>();
  order.name = json.at("name").get<std::string>();
  order.folder = json.at("folder").get<std::string>();
  order.cores = json.at("cores").get<std::vector<int>>();
  order.gpus = json.at("gpus").get<std::vector<std::string>>();
  order.hide_gpus = json.at("hide_gpus").get<bool>();
  order.memory = json.at("memory").get<int64_t>();
  order.gpu_memory = json.at("gpu_memory").get<int64_t>();
  order.nice = json.at("nice").get<int>();
  order.faults = json.at("inject").get<std::vector<std::string>>();
  return order;
}

Workplace::Workplace(EventLoop& loop, const Variables& variables, WorkplaceEvents events)
    : loop_(loop),
      variables_(without_ranks(variables)),
      events_(std::move(events)),
      agent_(loop, {[this](int job, const std::string& line) { events_.on_line(job, line); },
                    [this](int job, const ProcessEnd& end) { ended(job, end); }}),
      watch_(
          loop, [this](const std::vector<ResourceSample>& samples) { sampled(samples); },
          [this](const ResourceSample& sample, int64_t limit) {
            over_limit(sample.pipeline, str("took ", human_bytes(static_cast<double>(sample.memory)),
                                            " of anonymous memory, and its limit is ",
                                            human_bytes(static_cast<double>(limit)), " (memory)"));
          }) {}

Workplace::~Workplace() {
  if (following_ != 0) loop_.cancel(following_);
  kill_all();
}

pid_t Workplace::start(const PipelineOrder& order) {
  ProcessStart start;
  start.argv = {own_path(), "run", order.folder + "/pipeline.yaml", "--output", order.folder};
  for (const std::string& fault : order.faults) {
    start.argv.push_back("--inject");
    start.argv.push_back(fault);
  }
  start.environment = variables_;
  start.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  if (!order.gpus.empty()) start.environment["CUDA_VISIBLE_DEVICES"] = join(order.gpus, ",");
  if (order.hide_gpus) start.environment["CUDA_VISIBLE_DEVICES"] = "";
  if (order.gpu_memory > 0 && !order.gpus.empty())
    start.environment[gpu_memory_variable] = std::to_string(order.gpu_memory);
  start.cores = order.cores;
  const pid_t pid = agent_.start(order.job, start);
  // Its ranks, which it starts later, inherit it.
  if (order.nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(pid), getpriority(PRIO_PROCESS, 0) + order.nice);
  started_[order.job] = {pid, order.name, watched_gpu_memory(order), order.memory, memory_group(order, pid)};
  watch_.add({order.name, pid, order.memory, order.gpus});
  return pid;
}

// It has started nothing yet that could be left out: it has to read its configuration first.
std::unique_ptr<MemoryGroup> Workplace::memory_group(const PipelineOrder& order, pid_t pid) {
  if (order.memory <= 0) return nullptr;
  std::string why;
  auto group = MemoryGroup::make(order.name, order.memory, why);
  if (group && !group->add(pid)) {
    why = "the process could not be put into " + group->folder();
    group.reset();
  }
  if (!group && !std::exchange(told_ungrouped_, true))
    events_.on_line(order.job, str("memory is watched only, and no cgroup bounds it: ", why));
  if (group && following_ == 0) follow_files();
  return group;
}

void Workplace::follow_files() {
  bool any = following_ == 0;  // the first group is on its way into the list
  for (const auto& [job, started] : started_) {
    if (!started.group) continue;
    started.group->follow_files();
    any = true;
  }
  following_ = 0;
  if (!any) return;
  following_ = loop_.after(std::chrono::milliseconds(static_cast<int64_t>(MemoryGroup::follow_files_every * 1000)),
                           [this] { follow_files(); });
}

void Workplace::ask_to_stop(int job) {
  const auto found = started_.find(job);
  if (found != started_.end()) ::kill(found->second.pid, SIGTERM);
}

// Its descendants first: those in other groups and sessions would become ours once it is gone.
void Workplace::kill(int job) {
  const auto found = started_.find(job);
  if (found == started_.end()) return;
  const pid_t pid = found->second.pid;
  ::kill(pid, SIGSTOP);  // it must not start others meanwhile
  for (pid_t descendant : descendants_of(pid)) ::kill(descendant, SIGKILL);
  ::kill(-pid, SIGKILL);
  ::kill(pid, SIGKILL);
}

void Workplace::kill_all() {
  for (const auto& started : started_) kill(started.first);
}

void Workplace::sampled(const std::vector<ResourceSample>& samples) {
  events_.on_samples(samples);
  for (const ResourceSample& sample : samples) {
    const auto found = std::find_if(started_.begin(), started_.end(),
                                    [&](const auto& started) { return started.second.name == sample.pipeline; });
    if (found == started_.end() || sample.gpu_of_device) continue;
    const int64_t limit = found->second.gpu_memory;
    if (limit > 0 && sample.gpu_memory > limit)
      over_limit(sample.pipeline, str("took ", human_bytes(static_cast<double>(sample.gpu_memory)),
                                      " of its GPUs' memory, and its limit, with what CUDA itself needs, is ",
                                      human_bytes(static_cast<double>(limit)), " (gpu_memory)"));
  }
}

void Workplace::over_limit(const std::string& name, const std::string& what) {
  const auto found =
      std::find_if(started_.begin(), started_.end(), [&](const auto& started) { return started.second.name == name; });
  if (found == started_.end()) return;
  kill(found->first);
  events_.on_over_limit(found->first, what);
}

void Workplace::ended(int job, const ProcessEnd& end) {
  const Started& started = started_.at(job);
  const std::string name = started.name;
  if (started.group && started.group->killed_some())
    events_.on_over_limit(job, str("was ended by the kernel: it took so much at once that it passed ",
                                   human_bytes(static_cast<double>(started.group->bytes())),
                                   ", what its files take included, and its limit is ",
                                   human_bytes(static_cast<double>(started.memory)), " of anonymous memory (memory)"));
  started_.erase(job);
  events_.on_end(job, end, watch_.remove(name));
}

}  // namespace convoy
