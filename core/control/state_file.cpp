// Versioned fields in a mapping. A writer takes a fresh slot of its field and publishes it, so it never waits for
// another writer, not even for the one that its signal handler has interrupted; a reader takes what was published last
// and checks that the slot was not taken again meanwhile.
#include "core/control/state_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>

#include "core/control/call_notes.h"
#include "core/error.h"
#include "core/utf8.h"

namespace convoy {
namespace {

constexpr uint64_t magic = 0x32'45'54'41'54'53'56'43;  // "CVSTATE2" in little-endian
constexpr uint32_t layout_version = 2;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "the file is shared between processes");

// Text of at most 8 × words − 1 bytes, cut before the character that goes beyond.
template <size_t words, size_t slots>
struct Field {
  struct Slot {
    std::atomic<uint64_t> ticket;  // of what it holds; 0 while it is written
    std::atomic<uint64_t> text[words];
  };
  std::atomic<uint64_t> taken;
  std::atomic<uint64_t> published;  // 0: nothing yet
  Slot slot[slots];

  void write(const char* text) noexcept {
    const uint64_t ticket = taken.fetch_add(1, std::memory_order_relaxed) + 1;
    Slot& here = slot[ticket % slots];
    here.ticket.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const size_t length = utf8_cut(text, strnlen(text, words * 8), words * 8 - 1);
    bool ended = false;
    for (size_t word = 0; word < words && (!ended || word == 0); ++word) {
      uint64_t bits = 0;
      for (size_t byte = 0; byte < 8 && !ended; ++byte) {
        const size_t at = word * 8 + byte;
        const char c = at >= length ? '\0' : text[at];
        if (c == '\0') {
          ended = true;
        } else {
          bits |= static_cast<uint64_t>(static_cast<unsigned char>(c)) << (8 * byte);
        }
      }
      here.text[word].store(bits, std::memory_order_relaxed);
    }
    here.ticket.store(ticket, std::memory_order_release);
    uint64_t last = published.load(std::memory_order_relaxed);
    while (last < ticket && !published.compare_exchange_weak(last, ticket, std::memory_order_release)) {
    }
  }

  bool try_read(std::string& text) const {
    const uint64_t ticket = published.load(std::memory_order_acquire);
    text.clear();
    if (ticket == 0) return true;
    const Slot& here = slot[ticket % slots];
    if (here.ticket.load(std::memory_order_acquire) != ticket) return false;
    for (size_t at = 0; at < words * 8; ++at) {
      const char c = static_cast<char>(here.text[at / 8].load(std::memory_order_relaxed) >> (at % 8 * 8) & 0xff);
      if (c == '\0') break;
      text += c;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return here.ticket.load(std::memory_order_relaxed) == ticket;
  }

  // A writer that died inside a slot leaves the one published before whole, so a few tries are enough.
  std::string read() const {
    std::string text;
    for (int i = 0; i < 1000; ++i) {
      if (try_read(text)) return text;
    }
    return {};
  }
};

constexpr size_t group_slots = 16, notes_of_group = 8;

// Text of fixed length in words, zero-padded.
template <size_t words>
struct Words {
  std::atomic<uint64_t> word[words];

  void store(const char* text) noexcept {
    char bytes[words * 8] = {};
    memcpy(bytes, text, utf8_cut(text, strnlen(text, sizeof bytes), sizeof bytes - 1));
    for (size_t i = 0; i < words; ++i) {
      uint64_t bits = 0;
      memcpy(&bits, bytes + 8 * i, 8);
      word[i].store(bits, std::memory_order_relaxed);
    }
  }
  std::string load() const {
    char bytes[words * 8 + 1] = {};
    for (size_t i = 0; i < words; ++i) {
      const uint64_t bits = word[i].load(std::memory_order_relaxed);
      memcpy(bytes + 8 * i, &bits, 8);
    }
    return bytes;
  }
};

// Some notes in turn: those before stay whole while the next is written, and where its writer dies. As many as ranks may
// be apart in what they have called without waiting.
struct GroupCalls {
  struct Note {
    std::atomic<int64_t> number;  // 0 while it is written
    std::atomic<uint64_t> hash;
    std::atomic<int64_t> dimensions;
    std::atomic<int64_t> shape[4];
    Words<2> operation, dtype, more;
    Words<6> name;
  };
  Words<4> label;
  std::atomic<int64_t> last;  // number; 0: none
  Note note[notes_of_group];

  void write(const CallNote& call) noexcept {
    Note& here = note[static_cast<size_t>(call.number) % notes_of_group];
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

  // False where it has been overwritten meanwhile.
  bool read(int64_t number, RankCall& call) const {
    const Note& here = note[static_cast<size_t>(number) % notes_of_group];
    if (here.number.load(std::memory_order_acquire) != number) return false;
    call.number = number;
    call.hash = here.hash.load(std::memory_order_relaxed);
    call.call = described(here);
    std::atomic_thread_fence(std::memory_order_acquire);
    return here.number.load(std::memory_order_relaxed) == number;
  }

  // As backends describe a call to users.
  static std::string described(const Note& note) {
    std::string text = note.operation.load();
    if (const std::string name = note.name.load(); !name.empty()) text += " '" + name + "'";
    const int64_t dimensions = note.dimensions.load(std::memory_order_relaxed);
    if (dimensions >= 0) {
      text += " " + note.dtype.load() + "[";
      for (int64_t d = 0; d < std::min<int64_t>(dimensions, 4); ++d)
        text += (d == 0 ? "" : ",") + std::to_string(note.shape[d].load(std::memory_order_relaxed));
      text += dimensions > 4 ? ",…]" : "]";
    }
    if (const std::string more = note.more.load(); !more.empty()) text += " " + more;
    return text;
  }
};

struct Layout {
  std::atomic<uint64_t> magic_number;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> bytes;
  std::atomic<int64_t> step;
  std::atomic<int64_t> changed_ns;  // unix time
  Field<4, 8> phase;
  Field<16, 8> collective;
  Field<512, 4> failure;
  std::atomic<int64_t> groups;  // places taken
  GroupCalls calls[group_slots];
};

RankPosition read_position(const Layout& layout) {
  RankPosition position;
  position.phase = layout.phase.read();
  position.step = layout.step.load(std::memory_order_relaxed);
  position.collective = layout.collective.read();
  position.failure = layout.failure.read();
  position.seconds = static_cast<double>(layout.changed_ns.load(std::memory_order_acquire)) * 1e-9;
  return position;
}

std::vector<RankCall> read_calls(const Layout& layout) {
  std::vector<RankCall> all;
  const int64_t groups = std::min<int64_t>(layout.groups.load(std::memory_order_acquire), group_slots);
  for (int64_t group = 0; group < groups; ++group) {
    const GroupCalls& calls = layout.calls[group];
    const int64_t last = calls.last.load(std::memory_order_acquire);
    RankCall call;
    call.group = calls.label.load();
    for (int64_t number = std::max<int64_t>(last - static_cast<int64_t>(notes_of_group), 0) + 1; number <= last;
         ++number)
      if (calls.read(number, call)) all.push_back(call);
  }
  return all;
}

// The whole file, or null.
Layout* map_layout(const std::string& path, bool writable) {
  const int fd = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat status {};
  const bool whole = fstat(fd, &status) == 0 && status.st_size == static_cast<off_t>(sizeof(Layout));
  void* at =
      whole ? mmap(nullptr, sizeof(Layout), PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (at == MAP_FAILED) return nullptr;
  auto* layout = static_cast<Layout*>(at);
  if (layout->magic_number.load(std::memory_order_acquire) == magic && layout->version.load() == layout_version)
    return layout;
  munmap(at, sizeof(Layout));
  return nullptr;
}

int64_t unix_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);  // answered without entering the kernel
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

struct StateFile::Mapping {
  explicit Mapping(const std::string& path) {
    auto fail = [&](const char* what, int error) {
      return Error(Failure::io, str(path, ": ", what, ": ", std::strerror(error)));
    };
    // A new file each time, so that a reader of an old one never sees its mapping shrink.
    if (unlink(path.c_str()) != 0 && errno != ENOENT) throw fail("cannot replace the state file", errno);
    const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0644);
    if (fd < 0) throw fail("cannot create the state file", errno);
    // Room is taken now: a store to a mapping on a full disk ends the process.
    const int problem = posix_fallocate(fd, 0, sizeof(Layout));
    void* at = problem == 0 ? mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    const int map_error = errno;
    close(fd);
    if (problem != 0) throw fail("no room for the state file", problem);
    if (at == MAP_FAILED) throw fail("cannot map the state file", map_error);
    layout = static_cast<Layout*>(at);  // zeros, which is the initial value of everything but step
    layout->version.store(layout_version);
    layout->bytes.store(sizeof(Layout));
    layout->step.store(-1);
    touch();
    layout->magic_number.store(magic, std::memory_order_release);
  }
  ~Mapping() { munmap(layout, sizeof(Layout)); }
  void touch() noexcept { layout->changed_ns.store(unix_ns(), std::memory_order_release); }

  Layout* layout = nullptr;
};

StateFile::StateFile(const std::string& path) : mapping_(std::make_unique<Mapping>(path)) {}
StateFile::~StateFile() = default;

void StateFile::phase(const char* name) noexcept {
  mapping_->layout->phase.write(name);
  mapping_->touch();
}

void StateFile::step(int64_t step) noexcept {
  mapping_->layout->step.store(step, std::memory_order_relaxed);
  mapping_->touch();
}

void StateFile::collective(const char* name) noexcept {
  mapping_->layout->collective.write(name);
  mapping_->touch();
}

void StateFile::failure(const char* abort_json) noexcept {
  mapping_->layout->failure.write(abort_json);
  mapping_->touch();
}

void touch_state_file(const std::string& path) {
  Layout* layout = map_layout(path, true);
  if (layout == nullptr) return;
  layout->changed_ns.store(unix_ns(), std::memory_order_release);
  munmap(layout, sizeof(Layout));
}

std::optional<RankPosition> read_state_file(const std::string& path) {
  Layout* layout = map_layout(path, false);
  if (layout == nullptr) return std::nullopt;
  RankPosition position = read_position(*layout);
  munmap(layout, sizeof(Layout));
  return position;
}

struct CallNotes::Mapping {
  explicit Mapping(const std::string& path) : layout(map_layout(path, true)) {
    if (layout == nullptr) throw Error(Failure::io, str(path, ": cannot map the state file"));
  }
  ~Mapping() { munmap(layout, sizeof(Layout)); }
  Layout* layout;
};

CallNotes::CallNotes(const std::string& state_file) : mapping_(std::make_unique<Mapping>(state_file)) {}
CallNotes::~CallNotes() = default;

int CallNotes::add_group(const char* label) noexcept {
  const int64_t group = mapping_->layout->groups.fetch_add(1, std::memory_order_acq_rel);
  if (group >= static_cast<int64_t>(group_slots)) return -1;
  mapping_->layout->calls[group].label.store(label);
  return static_cast<int>(group);
}

void CallNotes::called(int group, const CallNote& call) noexcept {
  if (group >= 0) mapping_->layout->calls[group].write(call);
}

RankPosition CallNotes::position() const { return read_position(*mapping_->layout); }
std::vector<RankCall> CallNotes::calls() const { return read_calls(*mapping_->layout); }

std::vector<RankCall> read_call_notes(const std::string& state_file) {
  Layout* layout = map_layout(state_file, false);
  if (layout == nullptr) return {};
  std::vector<RankCall> calls = read_calls(*layout);
  munmap(layout, sizeof(Layout));
  return calls;
}

double state_file_cpu_seconds(const std::vector<RankCall>& made, int64_t steps) {
  const auto scratch = std::make_unique<Layout>();
  const auto cost = [](auto write) {
    constexpr int times = 500;
    timespec from{}, to{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (int i = 1; i <= times; ++i) write(i);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (static_cast<double>(to.tv_sec - from.tv_sec) + 1e-9 * static_cast<double>(to.tv_nsec - from.tv_nsec)) /
           times;
  };
  const double place = cost([&](int) {
    scratch->phase.write("forward/backward");
    scratch->changed_ns.store(unix_ns(), std::memory_order_release);
  });
  const double wait = cost([&](int) {
    scratch->collective.write("all_reduce bucket 2");
    scratch->changed_ns.store(unix_ns(), std::memory_order_release);
  });
  const int64_t shape[] = {1024, 1024};
  const double note = cost([&](int i) {
    scratch->calls[0].write({i, 1, "all_reduce", "bucket 2", "float32", shape, 2, "sum"});
  });
  std::map<std::string, int64_t> last;
  for (const RankCall& call : made) last[call.group] = call.number;
  int64_t calls = 0;
  for (const auto& [group, number] : last) calls += number;
  // A step writes itself and three phases, a call itself, its wait and the end of that.
  return static_cast<double>(steps) * 4 * place + static_cast<double>(calls) * (note + 2 * wait);
}

}  // namespace convoy
