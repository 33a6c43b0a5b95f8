// How often ranks that each hold the parameters whole agree on them, and on what: the section `sync` of their strategies.
// Without LibTorch.
//
// Per group of parameters, by name pattern: `gradients` of every update are summed, so that all ranks make the same one;
// or each rank makes its own updates and every k of them
//   parameters  are averaged (local SGD: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019), or
//   diloco      the mean of how far they went is what an outer Nesterov step goes by (Douillard et al., "DiLoCo:
//               Distributed Low-Communication Training of Language Models", arXiv:2311.08105).
// `every` counts micro-steps for gradients, which are added up before one update, and updates for the others.
#pragma once
#include <string>
#include <vector>

#include "core/name_pattern.h"
#include "strategies/catalogue.h"

namespace convoy {

enum class Agreement { gradients, parameters, diloco };

struct SyncGroup {
  std::string
      match;  // regular expression, searched anywhere in a parameter's name; "": whatever no group before it has
  Agreement what = Agreement::gradients;
  int64_t every = 1;
  int64_t start_after = 0;  // updates that are made as by gradients of every one
  bool average_moments = false;
  double outer_rate = 0.7, outer_momentum = 0.9;
  bool nesterov = true;

  // Whether update `number` (from 0) is each rank's own, and whether ranks agree behind it.
  bool apart(int64_t number) const { return what != Agreement::gradients && number >= start_after; }
  bool due(int64_t number) const { return apart(number) && (number + 1 - start_after) % every == 0; }
  // Whether ranks hold different values once so many updates are made.
  bool drifted(int64_t made) const {
    return what != Agreement::gradients && made > start_after && (made - start_after) % every != 0;
  }
  bool moments_drifted(int64_t made) const {
    return what != Agreement::gradients && made > start_after && (!average_moments || drifted(made));
  }
};

enum class Compression { none, fp16, bf16 };

struct SyncPolicy {
  int64_t every = 1;                           // micro-steps an update
  std::vector<SyncGroup> groups{SyncGroup{}};  // first match counts; the last is of all the rest
  Compression compress = Compression::none;

  size_t group_of(const std::string& parameter) const;
  // Whether it may be a row table: an outer step moves all rows.
  bool allows_rows(const std::string& parameter) const { return groups[group_of(parameter)].what != Agreement::diloco; }
  bool ever_apart() const;    // some group is not of gradients
  bool always_apart() const;  // no gradient is ever summed
  bool plain() const { return !ever_apart() && compress == Compression::none; }
  std::vector<NamePattern> patterns = {};  // by group, but for the last
};
// Of a resolved section of a strategy, checked before; keys that the strategy does not have are at their defaults.
SyncPolicy sync_policy(const Json& strategy);

// The section `sync` of strategies whose ranks are replicas.
Option replica_sync_option();

// What a section `sync` asks for that means nothing, or that this run cannot do. `copies`: the ranks of the data axis hold
// whole replicas. Throws ConfigError at the key; returns a line for each key that --set left without effect.
std::vector<std::string> check_sync(const RunConfig& config, bool copies);
// Throws ConfigError at the key for a pattern that no parameter's name has.
void check_sync_names(const Job& job, const Description& description);

// Elements of each of the policy's groups, in proportion to what blocks hold (which a tensor group may have cut).
std::vector<double> sync_elements(const SyncPolicy& policy, const Description& description);
// What a data axis of so many replicas sends in a step, averaged over many, once `start_after` is over: into the cost,
// with the bytes that replicas hold beside parameters, gradients and moments (`moments` of each parameter).
void add_sync_cost(const Json& config, const Description& description, int ranks, RankCost& cost);
// Lines that say what is sent when, per group; "" where gradients of every update are all.
std::string sync_text(const Json& config, const Description& description, int ranks);

}  // namespace convoy
