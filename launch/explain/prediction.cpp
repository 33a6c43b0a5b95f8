// The time of a step is that of its slowest rank: passes with their waits, the update, and exposed exchanges.
//
//   passes     span · pass(rows), measured with as many ranks at once; × time-slicing if ranks outnumber cores
//   update     updates · share of the parameters · update of all parameters
//   exchanges  Σ messages · time of one between two ranks, and one latency per further step of a larger ring
//
// Overlap hides only the time in which processors are idle: without other hardware a rank's core moves the bytes.
// Hidden time fits into the backward pass, two thirds of a pass.
#include "launch/explain/prediction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace convoy {
namespace {

constexpr double backward = 2.0 / 3;

double root_of_squares(const std::vector<double>& terms) {
  double sum = 0;
  for (const double term : terms) sum += term * term;
  return std::sqrt(sum);
}

// Index of the upper end of the interval between measured points that contains `value`, else of the nearest one.
template <class Point>
size_t upper_point(const std::vector<Point>& points, double Point::*coordinate, double value) {
  size_t upper = 1;
  while (upper + 1 < points.size() && points[upper].*coordinate < value) ++upper;
  return upper;
}

// Interpolates linearly between measured row counts; extrapolates through the two nearest ones.
double interpolated(const std::vector<PassTiming>& passes, double rows) {
  if (passes.size() == 1) return passes.front().step.seconds * std::max(rows / passes.front().rows, 0.0);
  const size_t upper = upper_point(passes, &PassTiming::rows, rows);
  const PassTiming &a = passes[upper - 1], &b = passes[upper];
  const double slope = std::max(0.0, (b.step.seconds - a.step.seconds) / (b.rows - a.rows));
  return std::max(0.0, a.step.seconds + slope * (rows - a.rows));
}

bool measured_at(const std::vector<PassTiming>& passes, double rows) {
  return std::any_of(passes.begin(), passes.end(),
                     [rows](const PassTiming& pass) { return std::abs(pass.rows - rows) <= 0.02 * rows; });
}

// Share of the parameters that an update of `rows` rows touches, interpolated as step times are.
double updated_at(const std::vector<PassTiming>& passes, double rows) {
  if (passes.size() == 1) return passes.front().updated;
  const size_t upper = upper_point(passes, &PassTiming::rows, rows);
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
    // The error is half of the difference from a time proportional to rows.
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

// Timings with `threads` threads. Prefers `ranks` ranks, then the next smaller number, then the smallest.
const StepTimings* timings_with(const Calibration& calibration, int ranks, int threads) {
  const StepTimings* best = nullptr;
  const auto distance = [ranks](const StepTimings& one) {
    return one.ranks <= ranks ? ranks - one.ranks : 1000000 + one.ranks;
  };
  for (const StepTimings& one : calibration.steps)
    if (one.threads == threads && (best == nullptr || distance(one) < distance(*best))) best = &one;
  return best;
}

// Estimate for `threads` threads, by Amdahl's law from two numbers of threads, or proportional from one.
// `of`: the estimate from one StepTimings.
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
  return kind == Exchange::send ? 1 : (kind == Exchange::all_reduce ? 2 : 1) * (ranks - 1);
}

// The ranks' shares of the cores of their hosts.
struct CoreSharing {
  int ranks = 0;                // on the fullest host; a rank with several sets of cores counts once for each
  int threads = 1;              // threads of each rank
  double threads_per_core = 1;  // at least 1
  bool gpus = false;

  // Time-slicing penalty beyond waiting: cold caches. Measured with two ranks on each of two cores: 0.07 of a step for
  // a GPT, 0.13 for an MLP, 0.46 and 0.70 for recommenders.
  static constexpr double slicing_cost = 0.3, slicing_doubt = 0.25;
  double slicing() const { return std::min(threads_per_core - 1, 1.0); }
  // Factor on the time of computation.
  double slowdown() const { return threads_per_core * (1 + slicing_cost * slicing()); }
};

CoreSharing core_sharing_of(const JobPlan& job, const Topology& topology) {
  CoreSharing sharing;
  std::map<int, int> ranks, threads;
  for (const RankPlan& rank : job.ranks) {
    const bool gpu = !rank.devices.empty() && rank.devices.front().kind == DevicePlan::Kind::gpu;
    sharing.gpus = sharing.gpus || gpu;
    const int devices = std::max<int>(1, static_cast<int>(rank.devices.size()));
    const int each = std::max(1, rank.threads / devices);
    ranks[rank.host] += devices;
    threads[rank.host] += gpu ? 0 : devices * each;
    sharing.threads = each;
  }
  for (const auto& [host, count] : ranks) {
    sharing.ranks = std::max(sharing.ranks, count);
    const auto& cores = topology.hosts.at(static_cast<size_t>(host)).cores;
    if (!cores.empty())
      sharing.threads_per_core =
          std::max(sharing.threads_per_core, static_cast<double>(threads[host]) / static_cast<double>(cores.size()));
  }
  return sharing;
}

// Extent of a group along one axis.
struct GroupExtent {
  size_t hosts = 1;
  int ranks = 1;
  int groups = 1;  // groups of the axis that share a host's link
};
GroupExtent extent_of(const JobPlan& job, int rank, const std::string& axis) {
  GroupExtent extent;
  const std::vector<int> group = job.mesh.group(rank, axis);
  extent.ranks = static_cast<int>(group.size());
  const int host = job.ranks.at(static_cast<size_t>(rank)).host;
  std::set<int> hosts;
  for (const int member : group) hosts.insert(job.ranks.at(static_cast<size_t>(member)).host);
  extent.hosts = hosts.size();
  std::set<std::vector<int>> groups;
  for (const RankPlan& other : job.ranks)
    if (other.host == host) groups.insert(job.mesh.group(other.rank, axis));
  extent.groups = static_cast<int>(groups.size());
  return extent;
}

class Predictor {
 public:
  Predictor(const JobPlan& job, const std::vector<RankCost>& costs, const Topology& topology,
            const Calibration& calibration, const std::optional<HostLink>& link)
      : job_(job), costs_(costs), calibration_(calibration), link_(link), sharing_(core_sharing_of(job, topology)) {}

  StepPrediction predict() {
    if (!comparable()) return result_;
    for (size_t rank = 0; rank < costs_.size(); ++rank) {
      StepPrediction one;
      std::vector<double> doubts;
      compute(costs_[rank].work, one, doubts);
      if (!add_exchanges(static_cast<int>(rank), costs_[rank], one, doubts)) return result_;
      one.seconds = one.compute + one.idle + one.update + one.exchange;
      one.error = root_of_squares(doubts);
      if (one.seconds > result_.seconds) {
        one.notes = result_.notes;
        result_ = std::move(one);
      }
    }
    add_notes();
    return result_;
  }

 private:
  bool comparable() {
    const bool measured_gpu = calibration_.device != "cpu";
    if (measured_gpu != sharing_.gpus) {
      result_.reason =
          str("the calibration was measured on ", measured_gpu ? "a GPU" : "cores", ", but its ranks run on ",
              sharing_.gpus ? "GPUs" : "cores", "; measure there with --calibrate");
      return false;
    }
    return true;
  }

  void compute(const RankWork& work, StepPrediction& one, std::vector<double>& doubts) const {
    const int threads = sharing_.gpus ? calibration_.steps.front().threads : sharing_.threads;
    const Estimate pass = pass_seconds(calibration_, sharing_.ranks, threads, work.rows);
    double each = pass.value;
    if (work.cut && work.passes > 0) {
      // Every rank issues all operations. So half of the fixed cost of a pass is assumed not to shrink with the shards;
      // the other half moves weights.
      const double share = work.busy / work.passes;
      const Estimate overhead = pass_overhead(calibration_, sharing_.ranks, threads);
      const double whole = overhead.value / 2 * (1 - share);
      each += share > 0 ? whole / share : 0;
      doubts.push_back(whole * work.passes);
    }
    const double span = std::max(work.span, work.busy);
    one.compute = work.busy * each * sharing_.slowdown();
    one.idle = (span - work.busy) * each * sharing_.slowdown();
    const Estimate update = update_seconds(calibration_, sharing_.ranks, threads);
    const double updates = work.updates * work.updated;
    one.update = updates * update.value * sharing_.slowdown();
    doubts.push_back(span * pass.error * sharing_.slowdown());
    doubts.push_back(updates * update.error * sharing_.slowdown());
    doubts.push_back(CoreSharing::slicing_doubt * sharing_.slicing() * sharing_.threads_per_core *
                     (span * each + updates * update.value));
  }

  // Adds the exchanges; false, with a reason, if a time is unknown.
  bool add_exchanges(int rank, const RankCost& cost, StepPrediction& one, std::vector<double>& doubts) {
    double window = backward * one.compute;
    for (const AxisCost& axis : cost.axes) {
      const GroupExtent extent = extent_of(job_, rank, axis.axis);
      if (axis.messages <= 0 || extent.ranks < 2) continue;
      const double bytes = axis.bytes / axis.messages;
      // A rank receives from a neighbour as much as it sends, so both directions count.
      const double messages = axis.messages * (axis.kind == Exchange::send ? 2 : 1);
      const std::optional<Estimate> local =
          exchange_seconds(calibration_, job_.backend, axis.kind, bytes, extent.ranks);
      double seconds = 0, busy = 0, error = 0;
      if (extent.hosts > 1) {
        if (!link_) {
          result_ = {};
          result_.reason =
              "its ranks run on several hosts, but the link between them is unknown; add --link "
              "LATENCY,BANDWIDTH, such as --link 20us,12GB/s";
          return false;
        }
        HostLink shared = *link_;
        shared.bandwidth /= extent.groups;
        seconds = link_seconds(shared, axis.kind, bytes, extent.ranks);
        // A rank needs as much CPU time as for an exchange within a host, so the exchange takes at least that.
        if (local) seconds = std::max(seconds, local->value * busy_of(axis.kind));
        busy = local && seconds > 0 ? std::min(1.0, local->value * busy_of(axis.kind) / seconds) : 0;
        error = seconds / 4;
      } else if (local) {
        seconds = local->value;
        error = local->error;
        busy = sharing_.gpus ? 0 : busy_of(axis.kind);
      } else {
        result_ = {};
        result_.reason = str("the calibration has no times of ", name_of(axis.kind), " by ", job_.backend,
                             "; measure with --calibrate and this strategy among those compared");
        return false;
      }
      // Ranks that share a core also time-slice the CPU time of the exchange.
      seconds *= messages * (1 + busy * (sharing_.threads_per_core - 1));
      const double hidden = std::min(axis.overlapped * (1 - busy) * seconds, window);
      window -= hidden;
      one.exchanges.push_back({axis.axis, axis.kind, axis.bytes, axis.messages, seconds, seconds - hidden,
                               axis.run_chooses_overlap && !sharing_.gpus});
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

  void add_notes() {
    int measured = 0;
    for (const StepTimings& one : calibration_.steps) measured = std::max(measured, one.ranks);
    if (sharing_.threads_per_core > 1)
      result_.notes.push_back(str("ranks outnumber cores: ", std::round(sharing_.threads_per_core * 10) / 10,
                                  " threads for each core, which is seldom faster than one for each"));
    if (sharing_.ranks > measured && sharing_.threads_per_core <= 1)
      result_.notes.push_back(str(sharing_.ranks, " ranks work at once on a host, and ", measured, " were measured"));
    if (!sharing_.gpus && timings_with(calibration_, sharing_.ranks, sharing_.threads) == nullptr)
      result_.notes.push_back(str("no step was measured with ", sharing_.threads, " threads"));
  }

  const JobPlan& job_;
  const std::vector<RankCost>& costs_;
  const Calibration& calibration_;
  const std::optional<HostLink>& link_;
  const CoreSharing sharing_;
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
      const size_t upper = upper_point(sizes, &MessageTiming::bytes, bytes);
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

double link_seconds(const HostLink& link, Exchange kind, double bytes, int ranks) {
  return hops(kind, ranks) * link.latency + bytes / link.bandwidth;
}

bool too_rough(const StepPrediction& step) { return step.error > step.seconds; }

StepPrediction predict(const JobPlan& job, const std::vector<RankCost>& costs, const Topology& topology,
                       const Calibration& calibration, const std::optional<HostLink>& link) {
  CONVOY_CHECK(!calibration.steps.empty() && costs.size() == job.ranks.size(), "a prediction of ", costs.size(),
               " ranks' costs for ", job.ranks.size());
  return Predictor(job, costs, topology, calibration, link).predict();
}

}  // namespace convoy
