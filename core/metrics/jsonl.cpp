// metrics.jsonl: one JSON object a line, each written by one call, so that a reader sees whole lines only.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/files.h"
#include "core/metrics/sink.h"

namespace convoy {
namespace {

class JsonlSink : public Sink {
 public:
  JsonlSink(const std::string& path, int64_t last_step) : path_(path), file_(open_to_append(path)) {
    drop_after(last_step);
  }

  void write(const Record& record) override {
    write_all(file_.get(), to_json(record).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", path_);
  }

 private:
  // Cuts the file before the first record of a later step, or a last line that was never finished. Steps only grow, so
  // what remains is whole; and one truncation cannot be seen half done.
  void drop_after(int64_t last_step) {
    std::string text;  // read, and not looked at yet
    off_t kept = 0;
    char part[1 << 16];
    for (off_t at = 0;;) {
      const ssize_t bytes = pread(file_.get(), part, sizeof part, at);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) fail("read");
      if (bytes == 0) break;
      at += bytes;
      text.append(part, static_cast<size_t>(bytes));
      size_t begin = 0;
      for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
        if (is_later(text.substr(begin, end - begin), last_step)) return cut(kept);
        kept += static_cast<off_t>(end + 1 - begin);
      }
      text.erase(0, begin);
    }
    if (!text.empty()) cut(kept);
  }
  static bool is_later(const std::string& line, int64_t last_step) {
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_object()) return false;
    const auto step = record.find("step");
    return step != record.end() && step->is_number_integer() && step->get<int64_t>() > last_step;
  }
  void cut(off_t size) {
    if (ftruncate(file_.get(), size) != 0) fail("truncate");
  }
  [[noreturn]] void fail(const char* what) const {
    throw Error(Failure::io, str("cannot ", what, " ", path_, ": ", std::strerror(errno)));
  }

  std::string path_;
  Descriptor file_;
};

}  // namespace

std::unique_ptr<Sink> make_jsonl_sink(const std::string& path, int64_t last_step) {
  return std::make_unique<JsonlSink>(path, last_step);
}

}  // namespace convoy
