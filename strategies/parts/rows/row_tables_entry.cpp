#include "strategies/parts/rows/row_tables_entry.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

#include "core/optim/row_entry.h"
#include "core/text.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/rows/row_numbers.h"
#include "strategies/parts/rows/row_shares_entry.h"

namespace convoy {

bool rows_by_size(int64_t table_rows, int64_t update_rows) {
  return table_rows >= 65536 && table_rows >= 50 * update_rows;
}

void check_row_tables(const RunConfig& config, bool supported) {
  const Options& model = config.model.options;
  const bool shares = asks_for_shares(model);
  if (!shares && (!model.json().contains("rows") || model.at("rows") != true)) return;
  if (!supported)
    model.fail("rows",
               str("is ", shares ? "sharded" : "true", ", and strategy ", config.strategy.name,
                   " keeps embeddings dense; leave it auto, or take a strategy whose ranks hold the whole model"));
  const Options& optimizer = config.optimizer.options;
  const RowObstacle obstacle = row_obstacle(config.optimizer.name, optimizer, optimizer.real("weight_decay"));
  if (!obstacle.key.empty()) optimizer.fail(obstacle.key, obstacle.reason);
  if (!shares) return;
  const SyncPolicy policy = sync_policy(config.strategy.options.json());
  if (std::any_of(policy.groups.begin(), policy.groups.end(),
                  [](const SyncGroup& group) { return group.what != Agreement::gradients; }))
    model.fail("rows",
               "is sharded, and by strategy.sync ranks train apart for a while, each with tables of its own; take "
               "rows: true, or what: gradients");
}

std::vector<std::string> row_warnings(const RunConfig& config) {
  const Options& model = config.model.options;
  if (!model.json().contains("rows") || !model.at("rows").is_boolean() || !model.boolean("rows")) return {};
  const SyncPolicy policy = sync_policy(config.strategy.options.json());
  if (std::none_of(policy.groups.begin(), policy.groups.end(),
                   [](const SyncGroup& group) { return group.what == Agreement::diloco; }))
    return {};
  return {
      "model.rows is true, and embeddings under strategy.sync what: diloco stay dense: an outer step moves all rows; "
      "take what: parameters for row tables that are averaged"};
}

namespace {

// Of an update, over all ranks.
int64_t update_rows(const Json& config, int ranks) {
  const double every = static_cast<double>(sync_policy(config.at("strategy")).every);
  return std::llround(rows_per_rank(config, ranks) * ranks * every);
}

RowObstacle obstacle_of(const Json& config, const std::string& table) {
  const RunConfig run = RunConfig::from_resolved(config);
  double decay = run.optimizer.options.real("weight_decay");
  const Options& options = run.optimizer.options;
  if (options.json().contains("groups"))
    for (const Options& group : options.sections("groups"))
      if (std::regex_search(table, std::regex(group.text("match")))) {
        if (group.has("weight_decay")) decay = group.real("weight_decay");
        break;
      }
  return row_obstacle(run.optimizer.name, options, decay);
}

// Why it is none of rows; "": it is one.
std::string why_dense(const Json& config, int ranks, const TableSize& table) {
  // A description may have been made with them.
  const Json& model = config.at("model");
  if (model.contains("rows") && model["rows"] == false) return "model.rows is false";
  if (!sync_policy(config.at("strategy")).allows_rows(table.name)) return "an outer step of diloco moves all rows";
  const RowObstacle obstacle = obstacle_of(config, table.name);
  if (!obstacle.key.empty()) return str("optimizer.", obstacle.key, " ", obstacle.reason);
  if (!table.asked && !rows_by_size(table.rows, update_rows(config, ranks)))
    return "auto takes rows from 65536 rows and 50 times those of an update of all ranks on";
  return "";
}

// Of a data axis: what is sent in an update of the tables whose gradients are summed, or, `dealt`, whose rows their owners tell.
void add_summed(const std::vector<TouchedTable>& tables, bool dealt, const SyncPolicy& policy, const RowRanks& where,
                double dense, RankCost& cost) {
  if (tables.empty()) return;
  const auto every = static_cast<double>(policy.every);
  const double sent_bytes = policy.compress == Compression::none ? 0 : 2;
  std::vector<DealtTable> touched;
  for (const TouchedTable& table : tables)
    touched.push_back({table.rows, table.width, table.element, table.unique(every, 1), sent_bytes});
  const RowCost sent = dealt ? shared_rows_cost(touched, where.ranks, dense)
                             : gathered_rows_cost(touched, where.ranks, dense, where.gpus);
  // Who shares a table waits for the others' updates before it looks.
  const double waits = where.sharing > 1 ? 1 : 0;
  cost.axes.push_back({"data", sent.bytes_sent / every, (sent.messages + waits) / every, Exchange::gather, 0});
}

// Of those whose rows are averaged every so many updates, of `every` batches each.
void add_averaged(const SyncGroup& group, const std::vector<TouchedTable>& tables, double every, int ranks,
                  double moments, RankCost& cost) {
  if (tables.empty()) return;
  const double batches = every * static_cast<double>(group.every), others = ranks - 1;
  const double tensors = group.average_moments ? 1 + moments : 1, count = static_cast<double>(tables.size());
  double told = 8 * count, averaged = 0;
  for (const TouchedTable& table : tables) {
    told += table.unique(batches, 1) * static_cast<double>(number_bytes(static_cast<int64_t>(table.rows)));
    averaged += table.unique(batches, ranks) * table.width * table.element * tensors;
  }
  cost.axes.push_back({"data", others * told / batches, (1 + count) / batches, Exchange::gather, 0});
  cost.axes.push_back(
      {"data", 2 * others / ranks * averaged / batches, count * tensors / batches, Exchange::all_reduce, 0});
}

}  // namespace

double TouchedTable::unique(double batches, double ranks) const {
  const double drawn = ids * batches * ranks;
  return among <= 1 ? std::min(drawn, among) : -among * std::expm1(drawn * std::log1p(-1 / among));
}

std::vector<TouchedTable> touched_tables(const Json& config, const Description& description, int ranks) {
  std::vector<TouchedTable> tables;
  const double share = rows_per_rank(config, ranks);
  for (const BlockDescription& block : description.blocks) {
    for (const TableSize& one : block.tables) {
      if (!why_dense(config, ranks, one).empty()) continue;
      TouchedTable table;
      table.name = one.name;
      table.rows = static_cast<double>(one.rows);
      table.width = static_cast<double>(one.dim);
      table.element = static_cast<double>(description.element_bytes);
      table.ids = share * (one.row_ids > 0 ? one.row_ids : 1);
      table.among = one.among > 0 ? one.among : table.rows;
      tables.push_back(table);
    }
  }
  return tables;
}

Description without(const Description& description, const std::vector<TouchedTable>& tables) {
  Description rest = description;
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

RowRanks row_ranks(const Job& job) {
  RowRanks where;
  where.ranks = static_cast<int>(job.ranks.size());
  where.gpus = job.ranks.front().devices.front().kind == DevicePlan::Kind::gpu;
  const SyncPolicy policy = sync_policy(job.config.at("strategy"));
  const Json launch = job.config.value("launch", Json::object());
  if (where.gpus || asks_for_shares(Options(job.config.value("model", Json::object()))) || policy.ever_apart() ||
      !launch.value("host_memory", true))
    return where;
  std::map<int, int> on_host;
  for (const RankPlan& rank : job.ranks) ++on_host[rank.host];
  const int sharing = on_host.begin()->second;
  if (std::all_of(on_host.begin(), on_host.end(), [&](const auto& host) { return host.second == sharing; }))
    where.sharing = sharing;
  return where;
}

void add_row_cost(const Json& config, const std::vector<TouchedTable>& tables, const RowRanks& where, double dense,
                  RankCost& cost) {
  if (tables.empty()) return;
  const int ranks = where.ranks;
  const SyncPolicy policy = sync_policy(config.at("strategy"));
  const auto every = static_cast<double>(policy.every);
  const double moments = moments_of(config);
  // Each row has one owner, who alone keeps and updates it; of ranks that share a copy each updates a part.
  const bool dealt = ranks > 1 && asks_for_shares(Options(config.at("model")));
  const double owners = dealt ? ranks : where.sharing;
  std::vector<std::vector<TouchedTable>> by_group(policy.groups.size());
  std::vector<TouchedTable> summed;
  double touched = 0, whole = 0;
  for (const TouchedTable& table : tables) {
    const size_t index = policy.group_of(table.name);
    const bool apart = policy.groups[index].what != Agreement::gradients;
    (apart ? by_group[index] : summed).push_back(table);
    const double own = table.unique(every, 1) * table.width * table.element;
    const double all = table.unique(every, apart ? 1 : ranks) * table.width * table.element;
    whole += table.bytes() / owners;
    touched += all / owners;
    cost.moment_bytes += (moments * table.bytes() + 4 * table.rows) / owners + (apart ? table.rows : 0);
    // What rows hold and their gradients; then messages and the sum over ranks.
    const double gathered = apart || ranks == 1 ? 0 : own * (1 + ranks) + all;
    cost.gradient_bytes += 2 * own + (dealt ? 3 * own + all / owners : gathered);
    // What rounding leaves over of each row.
    if (!apart && ranks > 1 && policy.compress != Compression::none) cost.gradient_bytes += table.bytes();
  }
  const double rest = cost.parameter_bytes, model = rest + whole * owners;
  cost.parameter_bytes += whole;
  cost.work.updated = model > 0 ? (rest + touched) / model : 1;
  if (ranks == 1) return;
  const size_t before = cost.axes.size();
  add_summed(summed, dealt, policy, where, dense, cost);
  for (size_t index = 0; index < by_group.size(); ++index)
    add_averaged(policy.groups[index], by_group[index], every, ranks, moments, cost);
  for (size_t index = before; index < cost.axes.size(); ++index) {
    cost.bytes_sent_per_step += cost.axes[index].bytes;
    cost.messages_per_step += cost.axes[index].messages;
  }
}

namespace {

// How ranks come to the same rows of it, and what that takes; "" of one rank.
std::string exchanged_text(const Json& config, const TouchedTable& table, const RowRanks& where) {
  if (where.ranks == 1) return "";
  const SyncPolicy policy = sync_policy(config.at("strategy"));
  const SyncGroup& group = policy.groups[policy.group_of(table.name)];
  RankCost cost;
  add_row_cost(config, {table}, where, 0, cost);
  std::string how = where.sharing > 1 ? "the ranks of a host share all rows, and are told what others touch"
                                      : "all ranks have all rows and are told what others touch";
  if (group.what != Agreement::gradients)
    how = str("ranks average what any has touched every ", group.every, group.every == 1 ? " update" : " updates");
  else if (asks_for_shares(Options(config.at("model"))))
    how = "each row has one owner, who is asked for it and sent its gradients";
  return str("; ", how, ", ", human_bytes(cost.bytes_sent_per_step), " a step");
}

}  // namespace

std::string row_text(const Job& job, const Description& description) {
  const Json& config = job.config;
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
        lines += str(what, "row table", table.asked ? "" : ", since it is large",
                     "; a rank's share of a batch looks up about ", std::llround(found->unique(1, 1)),
                     " different rows", exchanged_text(config, *found, where), "\n");
      else if (table.asked || rows_by_size(table.rows, update_rows(config, ranks)))
        lines += str(what, "dense: ", why_dense(config, ranks, table), "\n");
    }
  }
  return lines;
}

}  // namespace convoy
