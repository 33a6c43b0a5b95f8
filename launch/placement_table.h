// Where each rank has been placed and why: the table that a run prints once, that its summary keeps and `convoy
// explain` shows. Pure functions.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"
#include "core/plan.h"
#include "launch/core_pool.h"

namespace convoy {

struct PlacedRank {
  int rank = 0;
  std::string host;
  std::string device;        // "GPU 1 GPU-5f2a91c4", "cores"
  std::vector<int> numa;     // nodes of its cores, ascending
  std::vector<int> sockets;  // likewise
  std::vector<int> cores;    // processing units that it is bound to; empty: not bound
  int threads = 1;
  std::string why;
};

// Null for other devices and for a GPU that the host does not have.
const Gpu* gpu_of(const DevicePlan& device, const Host& host);
// The node and socket of the rank's first GPU; anywhere without one.
Nearness nearness_of(const RankPlan& rank, const Host& host);

// Why a rank got `taken`; `hyper_threads`: of cores that it shares with other ranks.
std::string placement_reason(const RankPlan& rank, const Host& host, const std::vector<Core>& taken,
                             bool hyper_threads);
PlacedRank placed_rank(const RankPlan& rank, const Host& host, const std::string& why);

// A line for each rank, under a heading. More than `most` ranks: a line for ranks of equal placement on any hosts, at
// most `most` of these, and a line that counts the rest.
std::string placement_text(const std::vector<PlacedRank>& table, size_t most);
Json to_json(const std::vector<PlacedRank>& table);

}  // namespace convoy
