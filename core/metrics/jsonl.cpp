// metrics.jsonl: one JSON object a line, each written by one call, so that a reader sees whole lines only.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/metrics/sink.h"

namespace convoy {
namespace {

class JsonlSink : public Sink {
 public:
  explicit JsonlSink(const std::string& path) : path_(path) {
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("open");
    end_cut_line();
  }
  ~JsonlSink() override { close(descriptor_); }
  JsonlSink(const JsonlSink&) = delete;
  JsonlSink& operator=(const JsonlSink&) = delete;

  void write(const Record& record) override {
    put(to_json(record).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  // An earlier attempt may have been killed within a line; ours must not continue it.
  void end_cut_line() {
    char last = '\n';
    const off_t size = lseek(descriptor_, 0, SEEK_END);
    if (size > 0 && pread(descriptor_, &last, 1, size - 1) != 1) fail("read");
    if (last != '\n') put("\n");
  }
  void put(const std::string& line) {
    for (size_t done = 0; done < line.size();) {
      const ssize_t written = ::write(descriptor_, line.data() + done, line.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      done += size_t(written);
    }
  }
  [[noreturn]] void fail(const char* what) const {
    throw Error(Failure::io, str("cannot ", what, " ", path_, ": ", std::strerror(errno)));
  }

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

std::unique_ptr<Sink> make_jsonl_sink(const std::string& path) { return std::make_unique<JsonlSink>(path); }

}  // namespace convoy
