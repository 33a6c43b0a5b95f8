#include "core/rank_state/time_breakdown.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace convoy {
namespace {

// Arrival times kept for each group. Ranks exchange them at the end: a few kilobytes each.
constexpr size_t most_samples = 256;
constexpr size_t most_groups = 64;  // a program may make any number; others have no times

// Hash of a label, equal on all hosts (FNV-1a).
int64_t number_of(const std::string& label) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : label) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return static_cast<int64_t>(hash);
}

size_t index_of(TimePart part) { return static_cast<size_t>(part); }

}  // namespace

const char* name_of(TimePart part) {
  static constexpr const char* names[] = {"start_up", "data",   "forward",    "backward",   "communication",
                                          "waiting",  "update", "evaluation", "checkpoint", "other"};
  static_assert(std::size(names) == time_parts);
  return names[index_of(part)];
}

// --- Collectives of a group ---

CollectiveTimes::CollectiveTimes(std::string label, std::vector<int> members)
    : label_(std::move(label)), members_(std::move(members)) {}

void CollectiveTimes::called(int64_t number) {
  if (number % stride_.load(std::memory_order_relaxed) != 0) return;
  std::lock_guard lock(mutex_);
  if (samples_.size() == most_samples) {
    stride_ = 2 * stride_;
    for (size_t i = 0; i < most_samples / 2; ++i) samples_[i] = samples_[2 * i + 1];
    samples_.resize(most_samples / 2);
  }
  if (number % stride_ == 0) samples_.push_back({number, steady_nanoseconds()});
}

CollectiveTimes::Sample* CollectiveTimes::sample(int64_t number) {
  const int64_t stride = stride_;
  const auto index = static_cast<size_t>(number / stride - 1);
  if (number % stride != 0 || index >= samples_.size() || samples_[index].number != number) return nullptr;
  return &samples_[index];
}

void CollectiveTimes::waited(int64_t number, int64_t from, int64_t to) {
  std::lock_guard lock(mutex_);
  waited_ += to - from;
  if (Sample* const known = sample(number)) {
    known->from = from;
    known->to = to;
  }
}

// --- Trace ---

TraceLog::Open::Open(TraceLog& log, std::string lane, std::string name, const char* category, int64_t bytes)
    : log_(log) {
  std::lock_guard lock(log.mutex_);
  slice_ =
      log.open_.insert(log.open_.end(), {std::move(lane), std::move(name), category, steady_nanoseconds(), 0, bytes});
}

TraceLog::Open::~Open() {
  std::lock_guard lock(log_.mutex_);
  slice_->from = std::max(slice_->from, log_.recorded_from_);
  slice_->to = steady_nanoseconds();
  if (log_.recorded_from_ > 0) log_.slices_.push_back(std::move(*slice_));
  log_.open_.erase(slice_);
}

void TraceLog::record(bool on) {
  std::lock_guard lock(mutex_);
  const int64_t now = steady_nanoseconds();
  if (recorded_from_ > 0 && !on) {
    for (TraceSlice slice : open_) {
      slice.from = std::max(slice.from, recorded_from_);
      slice.to = now;
      slices_.push_back(std::move(slice));
    }
  }
  recorded_from_ = on ? now : 0;
}

// --- Parts ---

TimeBreakdown::TimeBreakdown() : owner_(std::this_thread::get_id()), changed_(steady_nanoseconds()) {}

int64_t TimeBreakdown::change(TimePart part) {
  const int64_t now = steady_nanoseconds();
  nanoseconds_[index_of(part_)] += now - std::exchange(changed_, now);
  part_ = part;
  return now;
}

TimePart TimeBreakdown::phase(TimePart part) {
  // Another thread must not even read the owner's part.
  if (owner_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return part;
  const TimePart before = part_;
  change(part);
  if (TraceLog* const trace = this->trace()) {
    // This phase contains the whole step of the strategy; backward and update are details of it.
    const char* const name = before == TimePart::forward ? "train" : name_of(before);
    if (phase_from_ > 0) trace->add({"", name, "phase", phase_from_, changed_});
    phase_from_ = changed_;
  }
  detailed_ = part != TimePart::start_up && part != TimePart::evaluation && part != TimePart::checkpoint;
  return before;
}

bool TimeBreakdown::begin(TimePart part, TimePart& previous) {
  if (owner_.load(std::memory_order_relaxed) != std::this_thread::get_id() || !detailed_) return false;
  previous = part_;
  change(part);
  return true;
}

int64_t TimeBreakdown::end_detail(TimePart previous, int64_t from) {
  const TimePart part = part_;
  change(previous);
  // Collectives add their own slices, with names and bytes.
  if (TraceLog* const trace = this->trace();
      trace != nullptr && part != TimePart::communication && part != TimePart::waiting)
    trace->add({"", name_of(part), "phase", from, changed_});
  return changed_;
}

std::string TimeBreakdown::lane() const {
  return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id() ? ""
                                                                              : "thread " + std::to_string(gettid());
}

void TimeBreakdown::record(bool on) {
  phase_from_ = 0;
  trace_.record(on);
  recording_.store(on ? &trace_ : nullptr, std::memory_order_release);
}

std::array<double, time_parts> TimeBreakdown::seconds() {
  change(part_);
  std::array<double, time_parts> seconds{};
  for (size_t i = 0; i < time_parts; ++i) seconds[i] = 1e-9 * static_cast<double>(nanoseconds_[i]);
  return seconds;
}

std::shared_ptr<CollectiveTimes> TimeBreakdown::add_group(const std::string& label, const std::vector<int>& members) {
  std::lock_guard lock(mutex_);
  if (groups_.size() == most_groups) return nullptr;
  groups_.push_back(std::make_shared<CollectiveTimes>(label, members));
  return groups_.back();
}

// --- Waits for other ranks ---

void TimeBreakdown::set_clock_offset(int64_t nanoseconds) {
  if (offsets_.size() == 2) offsets_.pop_back();
  offsets_.push_back({steady_nanoseconds(), nanoseconds});
}

int64_t TimeBreakdown::on_common_clock(int64_t nanoseconds) const {
  if (offsets_.empty()) return nanoseconds;
  const Offset &first = offsets_.front(), &last = offsets_.back();
  double drift = 0;
  if (last.at > first.at)
    drift = static_cast<double>(last.nanoseconds - first.nanoseconds) / static_cast<double>(last.at - first.at);
  return nanoseconds + first.nanoseconds + static_cast<int64_t>(drift * static_cast<double>(nanoseconds - first.at));
}

// For each group: hash of its label, number of samples, and then number and moment of each.
std::vector<int64_t> TimeBreakdown::arrivals() const {
  std::vector<int64_t> all;
  for (const auto& group : groups_) {
    std::lock_guard lock(group->mutex_);
    all.push_back(number_of(group->label_));
    all.push_back(static_cast<int64_t>(group->samples_.size()));
    for (const auto& sample : group->samples_) {
      all.push_back(sample.number);
      all.push_back(on_common_clock(sample.arrived));
    }
  }
  return all;
}

namespace {

// Returns the arrivals of one rank at the calls of one group, by number.
std::map<int64_t, int64_t> arrivals_at(int64_t group, const std::vector<int64_t>& all) {
  std::map<int64_t, int64_t> found;
  for (size_t at = 0; at + 1 < all.size();) {
    const auto count = static_cast<size_t>(all[at + 1]);
    const bool wanted = all[at] == group;
    at += 2;
    for (size_t i = 0; i < count && at + 1 < all.size(); ++i, at += 2)
      if (wanted) found.emplace(all[at], all[at + 1]);
  }
  return found;
}

}  // namespace

void TimeBreakdown::split_waits(const std::vector<std::vector<int64_t>>& all) {
  for (const auto& group : groups_) {
    std::lock_guard lock(group->mutex_);
    struct Last {
      int64_t at = 0;
      int rank = -1;
    };
    std::map<int64_t, Last> last;  // by number of the call
    for (int member : group->members_)
      if (static_cast<size_t>(member) < all.size())
        for (const auto& [number, at] : arrivals_at(number_of(group->label_), all[static_cast<size_t>(member)]))
          if (Last& known = last[number]; known.rank < 0 || at > known.at) known = {at, member};
    double sampled = 0;
    std::map<int, double> waits;  // nanoseconds in the sample, by the last rank
    for (const auto& sample : group->samples_) {
      if (sample.to <= sample.from) continue;
      const int64_t length = sample.to - sample.from;
      sampled += static_cast<double>(length);
      const Last& peer = last[sample.number];
      if (peer.rank < 0) continue;
      const int64_t before = std::clamp<int64_t>(peer.at - on_common_clock(sample.from), 0, length);
      if (before > 0) waits[peer.rank] += static_cast<double>(before);
    }
    if (sampled <= 0) continue;
    const double scale = static_cast<double>(group->waited_) / sampled;
    for (const auto& [rank, nanoseconds] : waits) {
      const auto moved = static_cast<int64_t>(scale * nanoseconds);
      nanoseconds_[index_of(TimePart::communication)] -= moved;
      nanoseconds_[index_of(TimePart::waiting)] += moved;
      waited_for(rank, moved);
    }
  }
}

}  // namespace convoy
