// `convoy verify CONFIG [--steps N] [--precision P] [--tolerance T] [--set k=v]… [--ranks N]`: is a model trained right?
//
// Trains what CONFIG describes, with its own ranks, backend and mesh, and the same by the reference strategy on one rank,
// both on the same global batches, and compares the states after every update. Two runs in a temporary folder, which is gone
// afterwards; the output folders of runs are not touched.
#pragma once
#include <optional>
#include <string>

#include "core/difference.h"
#include "launch/prepare.h"

namespace convoy {

struct VerifyArguments {
  RunArguments run;  // `output` stays empty
  int steps = 5;     // global batches
  std::string precision = "fp64";
  std::optional<double> tolerance;  // 1e-9 in fp64, 1e-3 in fp32, more where gradients are compressed
};

// 0 where they agree, exit_code::differs where not, the code of the run that failed. Throws what is wrong before ranks start.
int verify_command(const VerifyArguments& arguments);

// Its decisions on the configuration, apart for tests.
// Throws ConfigError at the key of what is not meant to give the reference's results.
void check_comparable(const RunConfig& config);
// What both runs have as overrides beyond the user's own; `said` gets a line about each that changes the results.
std::vector<std::string> common_overrides(const RunConfig& config, const VerifyArguments& arguments,
                                          std::vector<std::string>& said);
// What makes a run of `config`, planned with so many data-parallel ranks, the reference: its strategy with those keys of the
// configured one that it knows too (accumulation, micro-batches), on one rank.
std::vector<std::string> reference_overrides(const RunConfig& config, int data_degree);
// Why states of a model with batch norm differ that is not synchronised: a line, or "".
std::string batch_norm_text(const Json& strategy, int data_degree, const std::vector<StepDifferences>& steps);

}  // namespace convoy
