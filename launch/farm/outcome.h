// What the end of a pipeline's attempt comes to. Pure.
#pragma once
#include <string>

#include "core/options.h"
#include "launch/process.h"

namespace convoy {

// Why the farm had it end.
enum class StopReason {
  none,     // it did not
  preempt,  // a more urgent one needs its slot
  timeout,
  memory,
  stopped  // the farm itself was asked to stop
};

struct Verdict {
  enum class What { done, preempted, stopped, failed } what = What::failed;
  bool again_helps = false;  // another attempt need not end the same way
  int exit_code = 0;
  std::string cause;    // of a failure, as in summary.json, or "memory", "timeout"
  std::string message;  // for people
};

// `detail`: for a memory limit or a timeout, what was found. `summary`: of the pipeline's folder as its own `convoy` left it.
// `told`: what that said last, for one that came to no summary.
// `held_to`: the limit that its ranks' allocators are held to, by its key, so that out of memory is cause `memory`; "": none.
Verdict judge(const ProcessEnd& end, StopReason asked, const std::string& detail, const Json& summary,
              const std::string& held_to = "", const std::string& told = "");

// The same summary with that end where its `convoy` could not write it, as one that was killed.
Json with_end(Json summary, const std::string& name, const Verdict& verdict);

}  // namespace convoy
