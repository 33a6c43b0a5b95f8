// Order of destruction of Job, Replicas or Shards, and Run. Each refers to those before it.
#pragma once
#include <memory>

namespace convoy {

// Lifetime of an object that others refer to. They hold `users`. In its destructor the object checks that they have
// ended, because later they would use freed memory. Threads: the thread of the rank.
class Lifetime {
 public:
  const std::shared_ptr<void>& users() const { return users_; }
  // Ends the process with a message if `object` ends before its users.
  void check_end(const char* object, const char* users) const;

 private:
  std::shared_ptr<void> users_ = std::make_shared<char>();
};

}  // namespace convoy
