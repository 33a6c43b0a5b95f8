// Notices that the launcher that started this process is gone, which mpirun's own children would otherwise not.
#pragma once
#include <functional>

#include "launch/event_loop.h"

namespace convoy {

class ParentWatch {
 public:
  // `gone` is called once, in the event loop.
  ParentWatch(EventLoop& loop, std::function<void()> gone);
  ~ParentWatch();
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;

 private:
  EventLoop& loop_;
  int fd_ = -1;
};

}  // namespace convoy
