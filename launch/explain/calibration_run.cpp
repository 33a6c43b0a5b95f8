#include "launch/explain/explain.h"

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "backends/catalogue/catalogue.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "launch/job/agent.h"
#include "launch/job/rendezvous.h"
#include "launch/job/run_modes.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds time_limit{60000};
constexpr size_t most_row_counts = 4, most_sizes = 7;
constexpr int64_t small_message = 256, middle_message = 64 << 10;

MeasuredRank measured_rank(const RankPlan& plan) {
  MeasuredRank rank{plan.cores, std::max(1, plan.threads)};
  if (!plan.devices.empty() && plan.devices.front().kind == DevicePlan::Kind::gpu) {
    rank.gpu = 0;
    rank.uuid = plan.devices.front().uuid;
  }
  return rank;
}

// Divides the cores of this host equally.
std::vector<MeasuredRank> divided(const Host& host, size_t ranks) {
  const size_t each = std::max<size_t>(1, host.cores.size() / ranks);
  std::vector<MeasuredRank> all(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = rank * each; i < std::min((rank + 1) * each, host.cores.size()); ++i)
      all[rank].cores.push_back(host.cores[i].id);
    all[rank].threads = static_cast<int>(std::max<size_t>(1, all[rank].cores.size()));
  }
  return all;
}

size_t ranks_on(const JobPlan& job, int host) {
  return static_cast<size_t>(
      std::count_if(job.ranks.begin(), job.ranks.end(), [host](const RankPlan& rank) { return rank.host == host; }));
}

// Row counts of the candidates' passes, the most frequent first; the second is a small one.
std::vector<int64_t> row_counts(const std::vector<const Candidate*>& candidates) {
  std::map<int64_t, int> wanted;
  for (const Candidate* candidate : candidates)
    ++wanted[std::max<int64_t>(1, std::llround(costs_of(*candidate).front().work.rows))];
  std::vector<int64_t> rows;
  for (const auto& [count, times] : wanted) rows.push_back(count);
  std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) { return wanted[a] > wanted[b]; });
  if (rows.size() > most_row_counts) rows.resize(most_row_counts);
  if (rows.empty()) return rows;
  const int64_t small = std::max<int64_t>(1, *std::min_element(rows.begin(), rows.end()) / 4);
  if (rows.front() == small) return rows;
  rows.erase(std::remove(rows.begin(), rows.end(), small), rows.end());
  rows.insert(rows.begin() + 1, small);
  return rows;
}

std::vector<WantedExchange> wanted_exchanges(const std::vector<const Candidate*>& candidates) {
  std::map<std::string, std::set<Exchange>> kinds;
  for (const Candidate* candidate : candidates)
    for (const RankCost& cost : costs_of(*candidate))
      for (const AxisCost& axis : cost.axes)
        if (axis.messages > 0) kinds[candidate->placed.job.backend].insert(axis.kind);
  std::vector<WantedExchange> wanted;
  for (const auto& [backend, exchanges] : kinds) {
    wanted.push_back({backend, backend_entry(backend).threads_only, {exchanges.begin(), exchanges.end()}});
  }
  return wanted;
}

std::vector<int64_t> message_sizes(const std::vector<const Candidate*>& candidates) {
  std::set<int64_t> exact;
  for (const Candidate* candidate : candidates)
    for (const RankCost& cost : costs_of(*candidate))
      for (const AxisCost& axis : cost.axes)
        if (axis.messages > 0 && axis.bytes / axis.messages > small_message)
          exact.insert(std::llround(axis.bytes / axis.messages));
  // Replaces near sizes by the largest of them.
  std::vector<int64_t> sizes{small_message};
  if (!exact.empty() && *exact.rbegin() > 4 * middle_message) exact.insert(middle_message);
  for (const int64_t size : exact) {
    if (sizes.size() > 1 && static_cast<double>(size) < 1.3 * static_cast<double>(sizes.back()))
      sizes.back() = size;
    else
      sizes.push_back(size);
  }
  while (sizes.size() > most_sizes) sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2));
  return sizes;
}

class MeasurementJob {
 public:
  MeasurementJob(const MeasurementRequest& request, const std::string& program, const Variables& variables)
      : request_(request),
        program_(program),
        variables_(without_ranks(variables)),
        processes_(std::max<size_t>(1, request.together.size())),
        agent_(loop_, {[this](int, const std::string& line) { output_ += line + "\n"; },
                       [this](int, const ProcessEnd& end) { ended(end); }}) {}

  std::vector<Measurement> run() {
    ChannelServerOptions options;
    options.job = random_token();
    ChannelServerEvents events;
    events.on_abort = [this](const Abort& reason) {
      loop_.post([this, reason] {
        cause_ = reason;
        agent_.kill_after(milliseconds(2000));
      });
    };
    const std::unique_ptr<ChannelServer> server = serve_channel(options, std::move(events));
    const std::shared_ptr<Channel> channel = connect_channel(server->address(), -1, "convoy", milliseconds(5000));
    channel->set(measurement_key::request, Json(request_).dump());
    loop_.on_signal([this](int) {
      stopped_ = true;
      agent_.kill_all();
    });
    loop_.after(time_limit, [this] {
      timed_out_ = true;
      agent_.kill_all();
    });
    start(to_string(server->address()));
    loop_.run_until([this] { return agent_.idle(); });
    check(channel->aborted());
    std::vector<Measurement> measured;
    for (size_t process = 0; process < processes_; ++process)
      measured.push_back(
          Json::parse(channel->get(str(measurement_key::result, process), milliseconds(1000))).get<Measurement>());
    return measured;
  }

 private:
  bool under_mpirun() const {
    return std::any_of(request_.exchanges.begin(), request_.exchanges.end(),
                       [](const WantedExchange& wanted) { return backend_entry(wanted.backend).by_mpirun; });
  }

  void start(const std::string& channel) {
    Variables environment = variables_;
    environment["CONVOY_CHANNEL"] = channel;
    const int threads = std::max(request_.alone.threads, request_.together.empty() ? 1 : request_.together[0].threads);
    environment["OMP_NUM_THREADS"] = std::to_string(threads);
    if (threads > 1) environment.emplace("OMP_WAIT_POLICY", "passive");  // as for the ranks of a run
    environment.emplace("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    if (under_mpirun()) {
      check_mpi_file_limit();
      ProcessStart start;
      start.argv = {executable_path("mpirun", "install Open MPI, or use --set backend=gloo"), "--bind-to", "none"};
      for (size_t process = 0; process < processes_; ++process) {
        if (process > 0) start.argv.emplace_back(":");
        for (const std::string& word :
             {std::string("-n"), std::string("1"), std::string("-x"), str("CONVOY_PROCESS=", process),
              std::string("-x"), std::string("CONVOY_CHANNEL"), program_, std::string("--calibrate")})
          start.argv.push_back(word);
      }
      start.environment = std::move(environment);
      start.environment.emplace("OMPI_MCA_odls_base_sigkill_timeout", "0");
      start.death_signal = 15;
      agent_.start(0, start);
      return;
    }
    for (size_t process = 0; process < processes_; ++process) {
      ProcessStart start;
      start.argv = {program_, "--calibrate"};
      start.environment = environment;
      start.environment["CONVOY_PROCESS"] = std::to_string(process);
      const MeasuredRank& rank = process == 0 ? request_.alone : request_.together[process];
      start.cores = rank.cores;
      if (!rank.uuid.empty()) start.environment["CUDA_VISIBLE_DEVICES"] = rank.uuid;
      agent_.start(static_cast<int>(process), start);
    }
  }

  void ended(const ProcessEnd& end) {
    if (end.ok() || failed_) return;
    failed_ = end;
    agent_.kill_after(milliseconds(2000));
  }

  void check(std::optional<Abort> abort) const {
    if (stopped_) throw Error(Failure::stopped, "convoy explain: stopped while it was measuring");
    if (!abort) abort = cause_;
    if (abort)
      throw Error(abort->kind == Failure::peer_lost ? Failure::training : abort->kind,
                  "--calibrate: " + abort->message);
    if (timed_out_)
      throw Error(Failure::hang, "--calibrate: the measurement did not end within ", time_limit.count() / 1000,
                  " s; perhaps a step of this model takes longer, this machine is busy, or the data is on a slow "
                  "disk");
    if (failed_)
      throw Error(Failure::training, "--calibrate: convoy-rank ", end_text(*failed_),
                  output_.empty() ? "" : ":\n" + output_);
  }

  const MeasurementRequest& request_;
  std::string program_;
  Variables variables_;
  size_t processes_;
  bool stopped_ = false, timed_out_ = false;
  std::optional<Abort> cause_;
  std::optional<ProcessEnd> failed_;
  std::string output_;
  EventLoop loop_;
  Agent agent_;
};

constexpr std::chrono::milliseconds moment{250};  // about 25 ticks of the kernel's clock

std::optional<CpuTimes> read_times(const std::vector<int>& threads) {
  return cpu_times(read_file_if_any("/proc/stat"), threads);
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double own_seconds() {
  rusage children{};
  getrusage(RUSAGE_CHILDREN, &children);
  return process_cpu_seconds() + seconds_of(children.ru_utime) + seconds_of(children.ru_stime);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

MeasurementRequest measurement_for(const Candidate& measured, const Candidate& reference,
                                   const std::vector<const Candidate*>& candidates, const Host& host, bool here) {
  MeasurementRequest request;
  request.config = measured.run.config.resolved;
  request.address = data_address(reference.run.config.launch.address, "127.0.0.1");
  std::vector<const Candidate*> alone, together;
  const Candidate* largest = nullptr;
  for (const Candidate* candidate : candidates) {
    const size_t ranks = candidate->placed.job.ranks.size();
    (ranks == 1 ? alone : together).push_back(candidate);
    if (ranks > 1 && (largest == nullptr || ranks_on(candidate->placed.job, 0) > ranks_on(largest->placed.job, 0)))
      largest = candidate;
  }
  alone.push_back(&reference);
  request.alone = here ? measured_rank(reference.placed.job.ranks.front()) : divided(host, 1).front();
  request.alone_rows = row_counts(alone);
  if (largest == nullptr) return request;
  // More ranks than cores would be time-sliced.
  const size_t most = std::max<size_t>(2, host.cores.size());
  const size_t ranks = std::clamp<size_t>(ranks_on(largest->placed.job, 0), 2, most);
  if (here && largest->placed.job.ranks.size() >= ranks) {
    for (size_t rank = 0; rank < ranks; ++rank)
      request.together.push_back(measured_rank(largest->placed.job.ranks[rank]));
  } else {
    request.together = divided(host, ranks);
  }
  request.together_rows = row_counts(together);
  request.exchanges = wanted_exchanges(together);
  request.bytes = message_sizes(together);
  return request;
}

std::vector<Measurement> measure(const MeasurementRequest& request, const std::string& rank_program,
                                 const Variables& variables) {
  return MeasurementJob(request, rank_program, variables).run();
}

std::optional<CpuTimes> cpu_times(const std::string& stat, const std::vector<int>& threads) {
  const auto ticks = static_cast<double>(std::max(1L, sysconf(_SC_CLK_TCK)));
  std::map<std::string, CpuTimes> by_thread;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line) && line.rfind("cpu", 0) == 0;) {
    std::istringstream fields(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, waits = 0, interrupts = 0, soft = 0, stolen = 0;
    fields >> name >> user >> nice >> system >> idle >> waits >> interrupts >> soft >> stolen;
    if (fields) by_thread[name] = {(user + nice + system + interrupts + soft) / ticks, stolen / ticks};
  }
  CpuTimes all;
  for (const int thread : threads) {
    const auto found = by_thread.find(str("cpu", thread));
    if (found == by_thread.end()) return std::nullopt;
    all.busy += found->second.busy;
    all.stolen += found->second.stolen;
  }
  return threads.empty() ? std::nullopt : std::optional<CpuTimes>(all);
}

double other_load(const CpuTimes& before, const CpuTimes& after, double own, double seconds, size_t threads) {
  const double others = std::max(0.0, after.busy - before.busy - own) + std::max(0.0, after.stolen - before.stolen);
  const double all = seconds * static_cast<double>(threads);
  return all > 0 ? std::min(1.0, others / all) : 0;
}

LoadWatch::LoadWatch(std::vector<int> threads)
    : threads_(std::move(threads)), before_(read_times(threads_)), own_(own_seconds()), start_(now()) {}

std::optional<double> LoadWatch::share() const {
  const std::optional<CpuTimes> after = read_times(threads_);
  if (!before_ || !after) return std::nullopt;
  return other_load(*before_, *after, own_seconds() - own_, now() - start_, threads_.size());
}

std::optional<double> load_now(const std::vector<int>& threads) {
  const LoadWatch watch(threads);
  std::this_thread::sleep_for(moment);
  return watch.share();
}

}  // namespace convoy
