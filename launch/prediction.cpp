// A step is as long as its slowest rank's: passes (with their waits), update, and what of the exchanges is not hidden.
//
//   passes     span · pass(rows), as measured of as many ranks at once; × ranks per core where they outnumber cores
//   update     updates · share of the parameters · update of all of them
//   exchanges  Σ messages · time of one between two ranks, and a latency for each step more that a larger ring has
//
// Of an exchange that may go on beside computing, only the time in which processors are idle can be hidden: a rank's own
// core moves its bytes where there is no other hardware to do it. What is hidden fits into backward, two thirds of a pass.
#include "launch/prediction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace convoy {
namespace {

constexpr double backward = 2.0 / 3;

double root_of_squares(const std::vector<double>& parts) {
  double sum = 0;
  for (const double part : parts) sum += part * part;
  return std::sqrt(sum);
}

// Linear between what was measured, and beyond it through the two next to it.
double interpolated(const std::vector<PassTiming>& passes, double rows) {
  if (passes.size() == 1) return passes.front().step.seconds * std::max(rows / passes.front().rows, 0.0);
  size_t upper = 1;
  while (upper + 1 < passes.size() && passes[upper].rows < rows) ++upper;
  const PassTiming &a = passes[upper - 1], &b = passes[upper];
  const double slope = std::max(0.0, (b.step.seconds - a.step.seconds) / (b.rows - a.rows));
  return std::max(0.0, a.step.seconds + slope * (rows - a.rows));
}

bool measured_at(const std::vector<PassTiming>& passes, double rows) {
  return std::any_of(passes.begin(), passes.end(),
                     [rows](const PassTiming& pass) { return std::abs(pass.rows - rows) <= 0.02 * rows; });
}

// Share of the parameters that the update of a step of so many rows touches; as steps' times are found.
double updated_at(const std::vector<PassTiming>& passes, double rows) {
  if (passes.size() == 1) return passes.front().updated;
  size_t upper = 1;
  while (upper + 1 < passes.size() && passes[upper].rows < rows) ++upper;
  const PassTiming &a = passes[upper - 1], &b = passes[upper];
  return std::clamp(a.updated + (b.updated - a.updated) / (b.rows - a.rows) * (rows - a.rows), 0.0, 1.0);
}

double spread_near(const std::vector<PassTiming>& passes, double rows) {
  const auto nearest = std::min_element(passes.begin(), passes.end(), [rows](const PassTiming& a, const PassTiming& b) {
    return std::abs(a.rows - rows) < std::abs(b.rows - rows);
  });
  return nearest->step.spread;
}

Estimate step_seconds(const StepTimings& steps, double rows) {
  Estimate step{interpolated(steps.passes, rows), 0};
  double doubt = 0;
  if (!measured_at(steps.passes, rows)) {
    // Were it proportional to the nearest one's rows instead?
    const auto nearest =
        std::min_element(steps.passes.begin(), steps.passes.end(), [rows](const PassTiming& a, const PassTiming& b) {
          return std::abs(std::log(a.rows / rows)) < std::abs(std::log(b.rows / rows));
        });
    const double update = steps.update.seconds * nearest->updated;
    const double pass = std::max(0.0, nearest->step.seconds - update);
    doubt = std::abs(update + pass * rows / nearest->rows - step.value) / 2;
  }
  step.error = root_of_squares({spread_near(steps.passes, rows) * step.value, doubt});
  return step;
}

// Measured with as many threads; of these with as many ranks at once, or the most that are fewer, else the fewest.
const StepTimings* timings_with(const Calibration& calibration, int ranks, int threads) {
  const StepTimings* best = nullptr;
  const auto distance = [ranks](const StepTimings& one) {
    return one.ranks <= ranks ? ranks - one.ranks : 1000000 + one.ranks;
  };
  for (const StepTimings& one : calibration.steps)
    if (one.threads == threads && (best == nullptr || distance(one) < distance(*best))) best = &one;
  return best;
}

// By Amdahl's law from two numbers of threads, else by proportion from one. `of` gives what is asked of one of them.
template <class Of>
Estimate with_threads(const Calibration& calibration, int ranks, int threads, Of of) {
  if (const StepTimings* exact = timings_with(calibration, ranks, threads)) return of(*exact);
  const StepTimings* least = &calibration.steps.front();
  const StepTimings* most = least;
  for (const StepTimings& one : calibration.steps) {
    if (one.threads < least->threads) least = &one;
    if (one.threads > most->threads) most = &one;
  }
  const Estimate few = of(*least), many = of(*most);
  const double proportional = many.value * most->threads / threads;
  if (least->threads == most->threads) return {proportional, root_of_squares({many.error, proportional / 4})};
  const double a = 1.0 / least->threads, b = 1.0 / most->threads;
  const double parallel = std::clamp((few.value - many.value) / (a - b), 0.0, few.value / a);
  const double serial = std::max(0.0, few.value - parallel * a);
  const double amdahl = serial + parallel / threads;
  return {amdahl, root_of_squares({many.error, (amdahl - proportional) / 2})};
}

int hops(Exchange kind, int ranks) {
  switch (kind) {
    case Exchange::all_reduce:
      return 2 * (ranks - 1);
    case Exchange::gather:
    case Exchange::scatter:
      return ranks - 1;
    case Exchange::send:
      return 1;
  }
  return 1;
}

// What plans have of hosts and devices.
struct Crowd {
  int workers = 0;   // on the host that has most: ranks, or devices of one that are sets of cores
  int threads = 1;   // of each
  double turns = 1;  // workers' threads for each core; 1 where there are enough
  bool gpus = false;

  // What turns cost beside waiting for them: what a rank's core had in its caches is another's when it goes on. Measured of
  // trainings that share two cores by two on each: 0.07 of a step for a GPT, 0.13 for an MLP, 0.46 and 0.70 for recommenders.
  static constexpr double turn_cost = 0.3, turn_doubt = 0.25;
  double shares() const { return std::min(turns - 1, 1.0); }
  // How many times as long something takes that a core computes.
  double slowed() const { return turns * (1 + turn_cost * shares()); }
};

Crowd crowd_of(const Job& job, const Topology& topology) {
  Crowd crowd;
  std::map<int, int> workers, threads;
  for (const RankPlan& rank : job.ranks) {
    const bool gpu = !rank.devices.empty() && rank.devices.front().kind == DevicePlan::Kind::gpu;
    crowd.gpus = crowd.gpus || gpu;
    const int devices = std::max<int>(1, static_cast<int>(rank.devices.size()));
    const int each = std::max(1, rank.threads / devices);
    workers[rank.host] += devices;
    threads[rank.host] += gpu ? 0 : devices * each;
    crowd.threads = each;
  }
  for (const auto& [host, count] : workers) {
    crowd.workers = std::max(crowd.workers, count);
    const auto& cores = topology.hosts.at(static_cast<size_t>(host)).cores;
    if (!cores.empty())
      crowd.turns = std::max(crowd.turns, static_cast<double>(threads[host]) / static_cast<double>(cores.size()));
  }
  return crowd;
}

// Hosts that a group spans, and groups that share a host's link.
struct Reach {
  size_t hosts = 1;
  int ranks = 1;
  int groups = 1;
};
Reach reach_of(const Job& job, int rank, const std::string& axis) {
  Reach reach;
  const std::vector<int> group = job.mesh.group(rank, axis);
  reach.ranks = static_cast<int>(group.size());
  const int host = job.ranks.at(static_cast<size_t>(rank)).host;
  std::set<int> hosts;
  for (const int member : group) hosts.insert(job.ranks.at(static_cast<size_t>(member)).host);
  reach.hosts = hosts.size();
  std::set<std::vector<int>> groups;
  for (const RankPlan& other : job.ranks)
    if (other.host == host) groups.insert(job.mesh.group(other.rank, axis));
  reach.groups = static_cast<int>(groups.size());
  return reach;
}

class Predictor {
 public:
  Predictor(const Job& job, const std::vector<RankCost>& costs, const Topology& topology,
            const Calibration& calibration, const std::optional<Link>& link)
      : job_(job), costs_(costs), calibration_(calibration), link_(link), crowd_(crowd_of(job, topology)) {}

  StepPrediction predict() {
    if (!comparable()) return result_;
    for (size_t rank = 0; rank < costs_.size(); ++rank) {
      StepPrediction one;
      std::vector<double> doubts;
      compute(costs_[rank].work, one, doubts);
      if (!exchange(static_cast<int>(rank), costs_[rank], one, doubts)) return result_;
      one.seconds = one.compute + one.idle + one.update + one.exchange;
      one.error = root_of_squares(doubts);
      if (one.seconds > result_.seconds) {
        one.notes = result_.notes;
        result_ = std::move(one);
      }
    }
    note_crowd();
    return result_;
  }

 private:
  bool comparable() {
    const bool measured_gpu = calibration_.device != "cpu";
    if (measured_gpu != crowd_.gpus) {
      result_.reason =
          str("the calibration was measured on ", measured_gpu ? "a GPU" : "cores", ", and its ranks are on ",
              crowd_.gpus ? "GPUs" : "cores", "; measure there with --calibrate");
      return false;
    }
    return true;
  }

  void compute(const RankWork& work, StepPrediction& one, std::vector<double>& doubts) const {
    const int threads = crowd_.gpus ? calibration_.steps.front().threads : crowd_.threads;
    const Estimate pass = pass_seconds(calibration_, crowd_.workers, threads, work.rows);
    double each = pass.value;
    if (work.cut && work.passes > 0) {
      // Every rank issues all operations; of what a pass costs without rows, moving the weights is shared.
      const double share = work.own / work.passes;
      const Estimate overhead = pass_overhead(calibration_, crowd_.workers, threads);
      const double whole = overhead.value / 2 * (1 - share);
      each += share > 0 ? whole / share : 0;
      doubts.push_back(whole * work.passes);
    }
    const double span = std::max(work.span, work.own);
    one.compute = work.own * each * crowd_.slowed();
    one.idle = (span - work.own) * each * crowd_.slowed();
    const Estimate update = update_seconds(calibration_, crowd_.workers, threads);
    const double updates = work.updates * work.updated;
    one.update = updates * update.value * crowd_.slowed();
    doubts.push_back(span * pass.error * crowd_.slowed());
    doubts.push_back(updates * update.error * crowd_.slowed());
    doubts.push_back(Crowd::turn_doubt * crowd_.shares() * crowd_.turns * (span * each + updates * update.value));
  }

  // False, with a reason, where what it takes is not known.
  bool exchange(int rank, const RankCost& cost, StepPrediction& one, std::vector<double>& doubts) {
    double window = backward * one.compute;
    for (const AxisCost& axis : cost.axes) {
      const Reach reach = reach_of(job_, rank, axis.axis);
      if (axis.messages <= 0 || reach.ranks < 2) continue;
      const double bytes = axis.bytes / axis.messages;
      // Who sends to a neighbour gets as much from it.
      const double messages = axis.messages * (axis.kind == Exchange::send ? 2 : 1);
      const std::optional<Estimate> local = exchange_seconds(calibration_, job_.backend, axis.kind, bytes, reach.ranks);
      double seconds = 0, busy = 0, error = 0;
      if (reach.hosts > 1) {
        if (!link_) {
          result_ = {};
          result_.reason =
              "its ranks are on several hosts, and no link between them was told: --link LATENCY,BANDWIDTH, as "
              "in --link 20us,12GB/s";
          return false;
        }
        Link shared = *link_;
        shared.bandwidth /= reach.groups;
        seconds = link_seconds(shared, axis.kind, bytes, reach.ranks);
        // The rank's own part of it is what it takes within a host.
        if (local) seconds = std::max(seconds, local->value * busy_of(axis.kind));
        busy = local && seconds > 0 ? std::min(1.0, local->value * busy_of(axis.kind) / seconds) : 0;
        error = seconds / 4;
      } else if (local) {
        seconds = local->value;
        error = local->error;
        busy = crowd_.gpus ? 0 : busy_of(axis.kind);
      } else {
        result_ = {};
        result_.reason = str("the calibration has no figures of ", name_of(axis.kind), " by ", job_.backend,
                             "; measure with --calibrate and this strategy among those compared");
        return false;
      }
      // The processor's part of it takes turns too.
      seconds *= messages * (1 + busy * (crowd_.turns - 1));
      const double hidden = std::min(axis.beside * (1 - busy) * seconds, window);
      window -= hidden;
      one.exchanges.push_back({axis.axis, axis.kind, axis.bytes, axis.messages, seconds, seconds - hidden});
      one.exchange += seconds - hidden;
      doubts.push_back(error * messages);
      doubts.push_back(hidden / 2);
    }
    return true;
  }

  double busy_of(Exchange kind) const {
    for (const ExchangeTimings& one : calibration_.exchanges)
      if (one.backend == job_.backend && one.kind == kind) return one.busy;
    return 1;
  }

  void note_crowd() {
    int measured = 0;
    for (const StepTimings& one : calibration_.steps) measured = std::max(measured, one.ranks);
    if (crowd_.turns > 1)
      result_.notes.push_back(str("ranks outnumber cores: ", std::round(crowd_.turns * 10) / 10,
                                  " threads for each core, which is seldom quicker than one for each"));
    if (crowd_.workers > measured && crowd_.turns <= 1)
      result_.notes.push_back(str(crowd_.workers, " ranks work at once on a host, and ", measured, " were measured"));
    if (!crowd_.gpus && timings_with(calibration_, crowd_.workers, crowd_.threads) == nullptr)
      result_.notes.push_back(str("no step was measured with ", crowd_.threads, " threads"));
  }

  const Job& job_;
  const std::vector<RankCost>& costs_;
  const Calibration& calibration_;
  const std::optional<Link>& link_;
  const Crowd crowd_;
  StepPrediction result_;
};

}  // namespace

Estimate pass_seconds(const Calibration& calibration, int ranks, int threads, double rows) {
  return with_threads(calibration, ranks, threads, [rows](const StepTimings& steps) {
    Estimate step = step_seconds(steps, rows);
    step.value = std::max(0.0, step.value - steps.update.seconds * updated_at(steps.passes, rows));
    return step;
  });
}

Estimate pass_overhead(const Calibration& calibration, int ranks, int threads) {
  return with_threads(calibration, ranks, threads, [](const StepTimings& steps) {
    const double none = steps.passes.size() > 1
                            ? interpolated(steps.passes, 0) - steps.update.seconds * updated_at(steps.passes, 0)
                            : 0;
    return Estimate{std::max(0.0, none), 0};
  });
}

Estimate update_seconds(const Calibration& calibration, int ranks, int threads) {
  return with_threads(calibration, ranks, threads, [](const StepTimings& steps) {
    return Estimate{steps.update.seconds, steps.update.seconds * steps.update.spread};
  });
}

std::optional<Estimate> exchange_seconds(const Calibration& calibration, const std::string& backend, Exchange kind,
                                         double bytes, int ranks) {
  for (const ExchangeTimings& one : calibration.exchanges) {
    if (one.backend != backend || one.kind != kind) continue;
    const std::vector<MessageTiming>& sizes = one.messages;
    Estimate time{sizes.front().time.seconds, sizes.front().time.spread * sizes.front().time.seconds};
    if (sizes.size() > 1 && bytes > sizes.front().bytes) {
      size_t upper = 1;
      while (upper + 1 < sizes.size() && sizes[upper].bytes < bytes) ++upper;
      const MessageTiming &a = sizes[upper - 1], &b = sizes[upper];
      const double slope = std::max(0.0, (b.time.seconds - a.time.seconds) / (b.bytes - a.bytes));
      time.value = a.time.seconds + slope * (bytes - a.bytes);
      const MessageTiming& nearest = std::abs(a.bytes - bytes) < std::abs(b.bytes - bytes) ? a : b;
      time.error = nearest.time.spread * time.value;
    }
    const double more = (static_cast<double>(hops(kind, ranks)) / hops(kind, 2) - 1) * one.latency();
    return Estimate{time.value + more, root_of_squares({time.error, more / 2})};
  }
  return std::nullopt;
}

double link_seconds(const Link& link, Exchange kind, double bytes, int ranks) {
  return hops(kind, ranks) * link.latency + bytes / link.bandwidth;
}

StepPrediction predict(const Job& job, const std::vector<RankCost>& costs, const Topology& topology,
                       const Calibration& calibration, const std::optional<Link>& link) {
  CONVOY_CHECK(!calibration.steps.empty() && costs.size() == job.ranks.size(), "a prediction of ", costs.size(),
               " ranks' costs for ", job.ranks.size());
  return Predictor(job, costs, topology, calibration, link).predict();
}

}  // namespace convoy
