// Cuts what a process writes into lines.
#pragma once
#include <functional>
#include <string>

namespace convoy {

// Bytes in, whole lines out, without their newline. A line beyond 64 KiB is told in pieces, so that nothing that a
// process writes can fill the memory; a carriage return alone ends a line too, as progress bars use it.
class LineCutter {
 public:
  using Sink = std::function<void(const std::string&)>;
  void add(const char* bytes, size_t size, const Sink& sink);
  void finish(const Sink& sink);  // the last line may lack its newline

 private:
  std::string partial_;
  bool after_return_ = false;
};

// Reads all that a non-blocking descriptor has; false when it is at its end.
bool read_available(int fd, LineCutter& cutter, const LineCutter::Sink& sink);

}  // namespace convoy
