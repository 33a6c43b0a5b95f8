// `convoy-rank --describe`: checks and facts that need LibTorch, before any rank starts.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/config/run_config.h"

namespace convoy {

// All names that a configuration may use, from the catalogues of every folder.
Catalogues all_catalogues();

// Checks every plugin that the configuration names, then lets `convoy-rank --describe` load them and check their
// options. The completed configuration replaces `config`. Throws ConfigError (refused or config) at the plugin's key if
// the file is missing or if others may write it. A failure of `convoy-rank` throws Error with its message and code.
void check_plugins(RunConfig& config, const std::string& rank_program);

// Prefix of the stack lines that `convoy-rank --describe` writes to standard error in answer to
// describe_stacks_signal(). Each line holds one ThreadStack as JSON; `null` follows the last one.
inline constexpr char describe_stack_line[] = "convoy-stack ";
int describe_stacks_signal();

// A child that answers requests prints {describe_failed_key: kind} on standard output at the end of each error. A child
// that ends without it, and without a crash report, was ended by code of a plugin, for example by _exit.
inline constexpr char describe_failed_key[] = "failed";

// Gives the configuration to `convoy-rank --describe`, which loads the plugins and checks their options.
// Returns {"version", "config": completed} and, depending on `what`:
//   ""             nothing more
//   "blocks"       "model": a ModelDescription with counts (strategies/plans/catalogue.h); makes data set and model
//   "activations"  the same, after a forward pass of one micro-batch
//   "metrics"      "metrics": EvaluationMetrics, or null
// A failure of `convoy-rank` throws Error with its message and code. After `limit` (by default launch.rendezvous of the
// configuration) it is killed and Error(hang) reports its stacks. The call returns soon after `limit`, even if another
// process keeps the pipes open.
Json describe_run(const std::string& rank_program, const RunConfig& config, const std::string& what = "",
                  std::optional<std::chrono::milliseconds> limit = std::nullopt);

// Runs `convoy-rank ARGUMENTS…` with JSON on standard input; returns the JSON of its last line. Its warnings go to
// standard error. A failure throws Error with its message and code; Error(hang) after `limit`.
Json ask_rank_program(const std::string& rank_program, const std::vector<std::string>& arguments, const Json& input,
                      std::chrono::milliseconds limit);

}  // namespace convoy
