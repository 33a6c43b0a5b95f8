// RUN/inbox: further pipelines for a farm that runs. `convoy add` puts NAME.yaml there by an atomic rename; the farm takes it
// and renames it to NAME.yaml.taken, or leaves NAME.yaml.refused with the reason in its place, whose last line is
// "exit code N".
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"

namespace convoy {

class Inbox {
 public:
  explicit Inbox(const std::string& run_folder);  // makes the folder; Error(output)

  std::vector<std::string> arrived();      // paths, by name; cheap while nothing has changed
  std::vector<std::string> taken() const;  // paths of those that were taken before
  void take(const std::string& path) const;
  void refuse(const std::string& path, const Error& reason) const;
  // What refuse() has written; null where there is no such answer yet.
  static std::unique_ptr<Error> refusal(const std::string& path);

 private:
  std::string folder_;
  struct timespec changed_ {};
  bool unsure_ = true;  // what changed within the clock's tick of the last look
};

}  // namespace convoy
