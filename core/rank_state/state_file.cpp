// Versioned fields in a mapping. A writer fills a slot of its field that no other writer uses. So it never waits for
// another writer, not even for one that its signal handler interrupted. A reader takes the newest complete slot and
// checks that it was not reused meanwhile.
#include "core/rank_state/state_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/control/channel.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"

namespace convoy {
namespace {

constexpr uint64_t magic = 0x33'45'54'41'54'53'56'43;  // "CVSTATE3" in little-endian
constexpr uint32_t layout_version = 3;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "the file is shared between processes");

// Text of at most 8 × words − 1 bytes, truncated at a character boundary and padded with zeros.
template <size_t words>
struct Words {
  std::atomic<uint64_t> word[words];

  void store(const char* text) noexcept {
    char bytes[words * 8] = {};
    memcpy(bytes, text, utf8_prefix(text, strnlen(text, sizeof bytes), sizeof bytes - 1));
    for (size_t i = 0; i < words; ++i) {
      uint64_t bits = 0;
      memcpy(&bits, bytes + 8 * i, 8);
      word[i].store(bits, std::memory_order_relaxed);
    }
  }
  using Copy = std::array<char, words * 8 + 1>;
  Copy copy() const {
    Copy bytes{};
    for (size_t i = 0; i < words; ++i) {
      const uint64_t bits = word[i].load(std::memory_order_relaxed);
      memcpy(bytes.data() + 8 * i, &bits, 8);
    }
    return bytes;
  }
  std::string load() const { return valid_utf8(copy().data()); }
};

// Text that several writers may change at the same time. Each takes a slot for itself.
template <size_t words, size_t slots>
struct Field {
  static constexpr uint64_t busy = ~uint64_t{0};
  struct Slot {
    std::atomic<uint64_t> ticket;  // the larger, the newer the text; 0: no text yet; busy: being written
    Words<words> text;
  };
  std::atomic<uint64_t> taken;
  Slot slot[slots];

  void write(const char* text) noexcept {
    // Tries the next slot while one is busy: its writer died, or others have taken all slots since it began.
    for (size_t attempt = 0; attempt < slots; ++attempt) {
      const uint64_t ticket = taken.fetch_add(1, std::memory_order_relaxed) + 1;
      Slot& here = slot[ticket % slots];
      uint64_t before = here.ticket.load(std::memory_order_relaxed);
      if (before >= ticket || !here.ticket.compare_exchange_strong(before, busy, std::memory_order_relaxed)) continue;
      std::atomic_thread_fence(std::memory_order_release);
      here.text.store(text);
      here.ticket.store(ticket, std::memory_order_release);
      return;
    }
  }

  // Reads the newest text; "" if there is none. Returns false if a writer took its slot meanwhile.
  bool try_read(std::string& text) const {
    text.clear();
    const Slot* newest = nullptr;
    uint64_t ticket = 0;
    for (const Slot& one : slot) {
      const uint64_t other = one.ticket.load(std::memory_order_acquire);
      if (other == busy || other <= ticket) continue;
      newest = &one;
      ticket = other;
    }
    if (newest == nullptr) return true;
    const auto copy = newest->text.copy();  // only copies: a fast writer soon reuses the slot
    std::atomic_thread_fence(std::memory_order_acquire);
    if (newest->ticket.load(std::memory_order_relaxed) != ticket) return false;
    text = valid_utf8(copy.data());
    return true;
  }

  // A writer that died leaves the other slots intact, so a few attempts are enough.
  std::string read() const {
    std::string text;
    for (int i = 0; i < 1000; ++i) {
      if (try_read(text)) return text;
      std::this_thread::yield();  // the writer may wait for this core
    }
    return {};
  }
};

constexpr size_t group_slots = 16, records_per_group = 8;

// Ring of records: earlier ones stay intact while the next is written, also if its writer dies. A rank that is ahead of
// another by the size of the ring or more, in calls, has no record in common with it.
struct GroupCalls {
  struct Record {
    std::atomic<int64_t> number;  // 0 during a write
    std::atomic<uint64_t> hash;
    std::atomic<int64_t> dimensions;
    std::atomic<int64_t> shape[4];
    Words<2> operation, dtype, more;
    Words<6> name;
  };
  Words<4> label;
  std::atomic<int64_t> last;  // number of the last call; 0: none
  Record records[records_per_group];

  void write(const CollectiveRecord& call) noexcept {
    Record& here = records[static_cast<size_t>(call.number) % records_per_group];
    here.number.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    here.hash.store(call.hash, std::memory_order_relaxed);
    here.dimensions.store(call.dimensions, std::memory_order_relaxed);
    for (int d = 0; d < std::min(call.dimensions, 4); ++d)
      here.shape[d].store(call.shape[d], std::memory_order_relaxed);
    here.operation.store(call.operation);
    here.dtype.store(call.dtype);
    here.more.store(call.more);
    here.name.store(call.name);
    here.number.store(call.number, std::memory_order_release);
    last.store(call.number, std::memory_order_release);
  }

  // Returns false if the record was overwritten.
  bool read(int64_t number, RankCall& call) const {
    const Record& here = records[static_cast<size_t>(number) % records_per_group];
    if (here.number.load(std::memory_order_acquire) != number) return false;
    call.number = number;
    call.hash = here.hash.load(std::memory_order_relaxed);
    call.call = described(here);
    std::atomic_thread_fence(std::memory_order_acquire);
    return here.number.load(std::memory_order_relaxed) == number;
  }

  // Text of a call, in the form of the backends.
  static std::string described(const Record& record) {
    std::string text = record.operation.load();
    if (const std::string name = record.name.load(); !name.empty()) text += " '" + name + "'";
    const int64_t dimensions = record.dimensions.load(std::memory_order_relaxed);
    if (dimensions >= 0) {
      text += " " + record.dtype.load() + "[";
      for (int64_t d = 0; d < std::min<int64_t>(dimensions, 4); ++d)
        text += (d == 0 ? "" : ",") + std::to_string(record.shape[d].load(std::memory_order_relaxed));
      text += dimensions > 4 ? ",…]" : "]";
    }
    if (const std::string more = record.more.load(); !more.empty()) text += " " + more;
    return text;
  }
};

int64_t unix_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);  // needs no system call
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

struct StateLayout {
  std::atomic<uint64_t> magic_number;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> bytes;
  std::atomic<int64_t> step;
  std::atomic<int64_t> changed_ns;  // unix time
  Field<4, 8> phase;
  Field<16, 8> collective;
  Field<512, 4> failure;
  std::atomic<int64_t> groups;  // number of groups in use
  GroupCalls calls[group_slots];

  void touch() noexcept { changed_ns.store(unix_ns(), std::memory_order_release); }
};

void UnmapState::operator()(StateLayout* layout) const { munmap(layout, sizeof(StateLayout)); }

namespace {

RankPosition read_position(const StateLayout& layout) {
  RankPosition position;
  position.phase = layout.phase.read();
  position.step = layout.step.load(std::memory_order_relaxed);
  position.collective = layout.collective.read();
  position.failure = layout.failure.read();
  position.seconds = static_cast<double>(layout.changed_ns.load(std::memory_order_acquire)) * 1e-9;
  return position;
}

std::vector<RankCall> read_calls(const StateLayout& layout) {
  std::vector<RankCall> all;
  const int64_t groups = std::min<int64_t>(layout.groups.load(std::memory_order_acquire), group_slots);
  for (int64_t group = 0; group < groups; ++group) {
    const GroupCalls& calls = layout.calls[group];
    const int64_t last = calls.last.load(std::memory_order_acquire);
    RankCall call;
    call.group = calls.label.load();
    for (int64_t number = std::max<int64_t>(last - static_cast<int64_t>(records_per_group), 0) + 1; number <= last;
         ++number)
      if (calls.read(number, call)) all.push_back(call);
  }
  return all;
}

// Null if the file cannot be mapped, or is no state file of this version.
StateMapping map_layout(const std::string& path, bool writable) {
  const Descriptor fd(open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!fd.valid() || fstat(fd.get(), &status) != 0 || status.st_size != static_cast<off_t>(sizeof(StateLayout)))
    return nullptr;
  void* const at = mmap(nullptr, sizeof(StateLayout), PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return nullptr;
  StateMapping layout(static_cast<StateLayout*>(at));
  const bool known =
      layout->magic_number.load(std::memory_order_acquire) == magic && layout->version.load() == layout_version;
  return known ? std::move(layout) : nullptr;
}

}  // namespace

StateFile::StateFile(const std::string& path) {
  auto fail = [&](const char* what, int error) {
    return Error(Failure::io, path, ": ", what, ": ", error_text(error));
  };
  // Create a new file each time, so that a reader of an old one never sees its mapping shrink.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) throw fail("cannot replace the state file", errno);
  const Descriptor fd(open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0644));
  if (!fd.valid()) throw fail("cannot create the state file", errno);
  // Allocate the space now: a store to a mapping on a full disk ends the process.
  if (const int problem = posix_fallocate(fd.get(), 0, sizeof(StateLayout)); problem != 0)
    throw fail("no room for the state file", problem);
  void* const at = mmap(nullptr, sizeof(StateLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) throw fail("cannot map the state file", errno);
  layout_.reset(static_cast<StateLayout*>(at));  // zeros, which is the initial value of everything but step
  layout_->version.store(layout_version);
  layout_->bytes.store(sizeof(StateLayout));
  layout_->step.store(-1);
  layout_->touch();
  layout_->magic_number.store(magic, std::memory_order_release);
}

void StateFile::phase(const char* name) noexcept {
  layout_->phase.write(name);
  layout_->touch();
}

void StateFile::step(int64_t step) noexcept {
  layout_->step.store(step, std::memory_order_relaxed);
  layout_->touch();
}

void StateFile::collective(const char* name) noexcept {
  layout_->collective.write(name);
  layout_->touch();
}

void StateFile::failure(const char* abort_json) noexcept {
  layout_->failure.write(abort_json);
  layout_->touch();
}

void touch_state_file(const std::string& path) {
  if (const StateMapping layout = map_layout(path, true)) layout->touch();
}

std::optional<RankPosition> read_state_file(const std::string& path) {
  const StateMapping layout = map_layout(path, false);
  if (layout == nullptr) return std::nullopt;
  return read_position(*layout);
}

CollectiveRecords::CollectiveRecords(const std::string& state_file) : layout_(map_layout(state_file, true)) {
  if (layout_ == nullptr) throw Error(Failure::io, state_file, ": cannot map the state file");
}

int CollectiveRecords::add_group(const char* label) noexcept {
  const int64_t group = layout_->groups.fetch_add(1, std::memory_order_acq_rel);
  if (group >= static_cast<int64_t>(group_slots)) return -1;
  layout_->calls[group].label.store(label);
  return static_cast<int>(group);
}

void CollectiveRecords::called(int group, const CollectiveRecord& call) noexcept {
  if (group >= 0) layout_->calls[group].write(call);
}

RankPosition CollectiveRecords::position() const { return read_position(*layout_); }
std::vector<RankCall> CollectiveRecords::calls() const { return read_calls(*layout_); }

std::vector<RankCall> read_collective_records(const std::string& state_file) {
  const StateMapping layout = map_layout(state_file, false);
  return layout == nullptr ? std::vector<RankCall>() : read_calls(*layout);
}

double state_file_cpu_seconds(const std::vector<RankCall>& made, int64_t steps) {
  const auto scratch = std::make_unique<StateLayout>();
  const auto cost = [](auto write) {
    constexpr int times = 500;
    const double from = thread_cpu_seconds();
    for (int i = 1; i <= times; ++i) write(i);
    return (thread_cpu_seconds() - from) / times;
  };
  const double phase = cost([&](int) {
    scratch->phase.write("forward/backward");
    scratch->touch();
  });
  const double wait = cost([&](int) {
    scratch->collective.write("all_reduce bucket 2");
    scratch->touch();
  });
  const int64_t shape[] = {1024, 1024};
  const double record = cost([&](int i) {
    scratch->calls[0].write({i, 1, "all_reduce", "bucket 2", "float32", shape, 2, "sum"});
  });
  std::map<std::string, int64_t> last;
  for (const RankCall& call : made) last[call.group] = call.number;
  int64_t calls = 0;
  for (const auto& [group, number] : last) calls += number;
  // A step writes the step and three phases; a call writes its record, and the start and end of its wait.
  return static_cast<double>(steps) * 4 * phase + static_cast<double>(calls) * (record + 2 * wait);
}

namespace {
thread_local CurrentCrashNote current_note;
}

CrashNote::CrashNote(const std::string& text) : text_(text) {
  Abort reason;
  reason.kind = Failure::training;
  reason.message = "in " + text;
  failure_ = to_json(reason).dump();
}

CrashScope::CrashScope(const CrashNote& note)
    : outer_(std::exchange(current_note, CurrentCrashNote{note.text_.c_str(), note.failure_.c_str()})) {}

CrashScope::~CrashScope() { current_note = outer_; }

CurrentCrashNote current_crash_note() noexcept { return current_note; }

}  // namespace convoy
