// `convoy bench OPERATION [CONFIG]`: how fast the ranks of a job exchange tensors, and whether rightly.
//
// A job like any other: placement, binding, supervision and failures are those of `convoy run`, under every launcher. The
// ranks time one operation instead of training (launch/rank/bench.h). Of a CONFIG only what is not about training counts:
// device, backend, launch, log.
#pragma once
#include <string>

#include "launch/prepare.h"

namespace convoy {

struct BenchArguments {
  RunArguments run;  // `config` may be empty; without `output` the run's folder goes once all is done
  std::string operation;
  std::string sizes = "1K-64M";
  std::string dtype = "fp32";
  std::string json;  // a file for the rows; "": none
};

// 0; exit_code::differs where an element was wrong; else as of `convoy run`.
int bench_command(const BenchArguments& arguments);

// What makes a job out of a configuration that may say nothing, apart for tests: overrides that stand for its training.
std::vector<std::string> bench_overrides(const std::string& operation);

}  // namespace convoy
