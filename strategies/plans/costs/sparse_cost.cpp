#include "strategies/plans/costs/sparse_cost.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/text.h"
#include "core/optim/catalogue/catalogue.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {
namespace {

bool asks_for_rows(const Options& model) {
  const RowsOption rows = rows_option(model);
  return rows == RowsOption::sparse || rows == RowsOption::sharded;
}

}  // namespace

bool sparse_check_wants_blocks(const JobPlan& job) {
  const RunConfig& config = job.config;
  if (!asks_for_rows(config.model.options)) return false;
  if (wants_sharded_rows(config.model.options) && job.mesh.degree("data") > 1) return true;
  const OptimizerOptions optimizer = optimizer_options(config.optimizer);
  const auto obstructs = [&](double decay) { return !row_obstacle(optimizer, decay).key.empty(); };
  return obstructs(optimizer.weight_decay) ||
         std::any_of(optimizer.groups.begin(), optimizer.groups.end(),
                     [&](const OptimizerGroup& group) { return group.weight_decay && obstructs(*group.weight_decay); });
}

void check_sparse_blocks(const JobPlan& job, const ModelDescription& description) {
  const RunConfig& config = job.config;
  if (!asks_for_rows(config.model.options)) return;
  const int ranks = job.mesh.degree("data");
  const bool shares = wants_sharded_rows(config.model.options) && ranks > 1;
  for (const BlockDescription& block : description.blocks) {
    for (const TableSize& table : block.tables) {
      const SparseDecision decision = sparse_decision(config, ranks, table);
      if (table.asked && !decision.key.empty())
        throw ConfigError(SourceLocation{}, decision.key, decision.reason, "; ", table.name, " is a sparse embedding");
    }
    for (const TiedEmbedding& table : block.tied_tables)
      if (table.asked && shares)
        config.model.options.fail("rows", "is sharded, but ", table.user, " is tied to ", table.name,
                                  " and needs all rows in every step; set rows: auto, or untie them");
  }
}

namespace {

// Reason why the table is dense; "" if it is sparse.
std::string why_dense(const RunConfig& config, int ranks, const TableSize& table) {
  // A description also lists tables that model.rows: false makes dense.
  if (rows_option(config.model.options) == RowsOption::dense) return "model.rows is false";
  const SparseDecision decision = sparse_decision(config, ranks, table);
  return decision.key.empty() ? decision.reason : str(decision.key, " ", decision.reason);
}

// Adds the messages along `data` of an update that sums the tables' gradients. `sharded`: tables are sharded, and
// owners send rows. `clips`: the norm is needed.
void add_summed(const std::vector<TouchedTable>& tables, bool sharded, const SyncPolicy& policy, const RowRanks& where,
                bool clips, double dense, RankCost& cost) {
  if (tables.empty()) return;
  const auto every = double(policy.every);
  const double sent_bytes = policy.compress == Compression::none ? 0 : 2;
  std::vector<ShardedTable> touched;
  for (const TouchedTable& table : tables)
    touched.push_back({table.rows, table.width, table.element, table.unique(every, 1), sent_bytes});
  // Ranks that share tables also send the size of the gradients, a number of 8 bytes.
  const double head = where.sharing > 1 && sent_bytes == 0 ? 8 : 0;
  const RowCost sent = sharded ? sharded_rows_cost(touched, where.ranks, dense)
                               : gathered_rows_cost(touched, where.ranks, dense + head, where.gpus);
  // Ranks that share a table wait for the others' updates before a look-up, and for the norm if every update needs it
  // (Update::reduced_rows).
  const bool exchanges_norm = clips || sent_bytes > 0 || policy.every > 1;
  const double waits = where.sharing > 1 ? (exchanges_norm ? 2 : 1) : 0;
  cost.add({"data", sent.bytes_sent / every, (sent.messages + waits) / every, Exchange::gather, 0});
}

// Adds the messages of the tables of a local group. Ranks average the tables after every group.every updates, each of
// `every` batches.
void add_averaged(const SyncGroup& group, const std::vector<TouchedTable>& tables, double every, int ranks,
                  double moments, RankCost& cost) {
  if (tables.empty()) return;
  const double batches = every * double(group.every), others = ranks - 1;
  const double tensors = group.average_moments ? 1 + moments : 1, count = double(tables.size());
  double row_bytes = 8 * count, averaged = 0;
  for (const TouchedTable& table : tables) {
    row_bytes += table.unique(batches, 1) * double(number_bytes(int64_t(table.rows)));
    averaged += table.unique(batches, ranks) * table.width * table.element * tensors;
  }
  cost.add({"data", others * row_bytes / batches, (1 + count) / batches, Exchange::gather, 0});
  cost.add({"data", 2 * others / ranks * averaged / batches, count * tensors / batches, Exchange::all_reduce, 0});
}

}  // namespace

double TouchedTable::unique(double batches, double ranks) const {
  const double wanted = ids * batches * ranks;
  if (drawn.empty()) return rows <= 1 ? std::min(wanted, rows) : -rows * std::expm1(wanted * std::log1p(-1 / rows));
  // Interpolates between samples, and extrapolates beyond, by a power of the ids. This fits a Zipf distribution.
  size_t above = 0;
  while (above + 1 < drawn.size() && drawn[above].first < wanted) ++above;
  const std::pair<double, double> from = above > 0 ? drawn[above - 1] : std::pair{1.0, 1.0};
  const std::pair<double, double> to = drawn[above];
  if (wanted <= 1 || to.first <= from.first) return std::min(wanted, to.second);
  const double power = std::log(to.second / from.second) / std::log(to.first / from.first);
  return std::min(rows, from.second * std::pow(wanted / from.first, power));
}

std::vector<TouchedTable> touched_tables(const RunConfig& config, const ModelDescription& description, int ranks) {
  std::vector<TouchedTable> tables;
  const double share = rows_per_rank(config, ranks);
  for (const BlockDescription& block : description.blocks) {
    for (const TableSize& one : block.tables) {
      if (!why_dense(config, ranks, one).empty()) continue;
      const double row_ids = one.row_ids > 0 ? one.row_ids : double(one.lookups);
      tables.push_back(
          {one.name, double(one.rows), double(one.dim), double(description.element_bytes), share * row_ids, one.drawn});
    }
  }
  return tables;
}

ModelDescription without(const ModelDescription& description, const std::vector<TouchedTable>& tables) {
  ModelDescription rest = description;
  for (BlockDescription& block : rest.blocks) {
    for (const TouchedTable& table : tables) {
      const auto named = std::find_if(block.named.begin(), block.named.end(),
                                      [&](const auto& one) { return one.first == table.name; });
      if (named == block.named.end()) continue;
      block.parameters -= named->second;
      block.cut_parameters -= named->second;
      --block.tensors;
      block.named.erase(named);
    }
  }
  return rest;
}

RowRanks row_ranks(const JobPlan& job) {
  RowRanks where;
  where.ranks = int(job.ranks.size());
  where.gpus = job.ranks.front().devices.front().kind == DevicePlan::Kind::gpu;
  if (where.gpus || wants_sharded_rows(job.config.model.options) ||
      sync_policy(job.config.strategy.options).ever_local() || !job.config.launch.host_memory)
    return where;
  std::map<int, int> on_host;
  for (const RankPlan& rank : job.ranks) ++on_host[rank.host];
  const int sharing = on_host.begin()->second;
  if (std::all_of(on_host.begin(), on_host.end(), [&](const auto& host) { return host.second == sharing; }))
    where.sharing = sharing;
  return where;
}

void add_row_cost(const RunConfig& config, const std::vector<TouchedTable>& tables, const RowRanks& where, double dense,
                  RankCost& cost) {
  if (tables.empty()) return;
  const int ranks = where.ranks;
  const SyncPolicy policy = sync_policy(config.strategy.options);
  const auto every = double(policy.every);
  const double moments = moments_of(config);
  // Sharded: each row has one owner, which keeps and updates it. Shared: each rank of a host updates a part of the
  // rows.
  const bool sharded = ranks > 1 && wants_sharded_rows(config.model.options);
  const double owners = sharded ? ranks : where.sharing;
  std::vector<std::vector<TouchedTable>> by_group(policy.groups.size());
  std::vector<TouchedTable> summed;
  double touched = 0, whole = 0;
  for (const TouchedTable& table : tables) {
    const size_t index = policy.group_of(table.name);
    const bool local = policy.groups[index].what != SyncKind::gradients;
    (local ? by_group[index] : summed).push_back(table);
    const double own = table.unique(every, 1) * table.width * table.element;
    const double all = table.unique(every, local ? 1 : ranks) * table.width * table.element;
    whole += table.bytes() / owners;
    touched += all / owners;
    cost.moment_bytes += (moments * table.bytes() + 4 * table.rows) / owners + (local ? table.rows : 0);
    // Touched rows and their gradients; then messages and the sum over ranks.
    const double gathered = local || ranks == 1 ? 0 : own * (1 + ranks) + all;
    cost.gradient_bytes += 2 * own + (sharded ? 3 * own + all / owners : gathered);
    // Compression errors of all rows.
    if (!local && ranks > 1 && policy.compress != Compression::none) cost.gradient_bytes += table.bytes();
  }
  const double rest = cost.parameter_bytes, model = rest + whole * owners;
  cost.parameter_bytes += whole;
  cost.work.updated = model > 0 ? (rest + touched) / model : 1;
  if (ranks == 1) return;
  add_summed(summed, sharded, policy, where, optimizer_options(config.optimizer).clip_norm > 0, dense, cost);
  for (size_t index = 0; index < by_group.size(); ++index)
    add_averaged(policy.groups[index], by_group[index], every, ranks, moments, cost);
}

namespace {

// Text on the communication of a table's rows and its cost; "" for one rank.
std::string exchanged_text(const RunConfig& config, const TouchedTable& table, const RowRanks& where) {
  if (where.ranks == 1) return "";
  const SyncPolicy policy = sync_policy(config.strategy.options);
  const SyncGroup& group = policy.groups[policy.group_of(table.name)];
  RankCost cost;
  add_row_cost(config, {table}, where, 0, cost);
  std::string how = where.sharing > 1 ? "the ranks of a host share all rows, and gather those that others touch"
                                      : "all ranks have all rows and gather those that others touch";
  if (group.what != SyncKind::gradients)
    how = str("ranks average touched rows every ", group.every, group.every == 1 ? " update" : " updates");
  else if (wants_sharded_rows(config.model.options))
    how = "each row has one owner, which sends the row and receives its gradients";
  return str("; ", how, ", ", human_bytes(cost.bytes_sent_per_step), " a step");
}

}  // namespace

std::string sparse_text(const JobPlan& job, const ModelDescription& description) {
  const RunConfig& config = job.config;
  const RowRanks where = row_ranks(job);
  const int ranks = where.ranks;
  std::string lines;
  const std::vector<TouchedTable> kept = touched_tables(config, description, ranks);
  for (const BlockDescription& block : description.blocks) {
    for (const TableSize& table : block.tables) {
      const std::string what = str(table.name, " (", table.rows, " × ", table.dim, "): ");
      const auto found =
          std::find_if(kept.begin(), kept.end(), [&](const TouchedTable& one) { return one.name == table.name; });
      if (found != kept.end())
        lines += str(what, "sparse embedding", table.asked ? "" : ", since it is large",
                     "; a rank's share of a batch looks up about ", std::llround(found->unique(1, 1)),
                     " different rows", exchanged_text(config, *found, where), "\n");
      else if (table.asked || sparse_decision(config, ranks, table).large)
        lines += str(what, "dense: ", why_dense(config, ranks, table), "\n");
    }
  }
  return lines;
}

namespace {

double bytes_of_number(const ShardedTable& table) { return double(number_bytes(int64_t(table.rows))); }

double gradient_element(const ShardedTable& table) {
  return table.sent_bytes > 0 ? table.sent_bytes : table.element_bytes;
}

double gradient_head(const ShardedTable& table) { return table.sent_bytes > 0 ? half_head_bytes : 0; }

double padded_bytes(double bytes) { return double(padded(std::llround(std::ceil(bytes)))); }

}  // namespace

RowCost gathered_rows_cost(const std::vector<ShardedTable>& tables, int ranks, double dense_bytes, bool gpus) {
  const double others = ranks - 1;
  RowCost cost;
  // One message has counts, ids and gradients. With GPUs the host needs the counts first.
  cost.messages = ranks > 1 ? (gpus ? 2 : 1) : 0;
  cost.bytes_sent = others * (dense_bytes + 8 * double(tables.size()));
  for (const ShardedTable& table : tables) {
    cost.bytes_sent +=
        others * (padded_bytes(table.touched * bytes_of_number(table)) +
                  padded_bytes(table.touched * table.width * gradient_element(table)) + gradient_head(table));
  }
  return cost;
}

RowCost sharded_rows_cost(const std::vector<ShardedTable>& tables, int ranks, double dense_bytes) {
  const double others = ranks - 1;
  RowCost cost;
  // Ids, rows, gradients, and the norm.
  cost.messages = ranks > 1 ? 4 : 0;
  cost.bytes_sent = others * (dense_bytes + 8 * double(tables.size()));
  for (const ShardedTable& table : tables) {
    cost.bytes_sent += others / ranks * table.touched *
                           (bytes_of_number(table) + table.width * (table.element_bytes + gradient_element(table))) +
                       others * gradient_head(table);
  }
  return cost;
}

}  // namespace convoy
