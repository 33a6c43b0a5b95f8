#include "strategies/parts/rows/row_tables_entry.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/name_pattern.h"
#include "core/optim/row_entry.h"
#include "core/text.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/rows/row_numbers.h"
#include "strategies/parts/rows/row_shares_entry.h"

namespace convoy {

namespace {

constexpr int64_t least_rows = 65536;
constexpr double most_of_table = 0.25;

bool asks_for_rows(const Json& model) {
  return model.contains("rows") && (model["rows"] == true || model["rows"] == "sharded");
}

// Ids of a table that an update looks up, where a row of a batch has `lookups`: those of all ranks, whose gradients are summed.
// Ranks that train apart update what they have looked up themselves. How seldom they then agree makes no difference: an
// agreement sends at most all rows, as of a dense table, with their numbers, and a sweep over that would come with every update.
double update_lookups(const RunConfig& config, int ranks, const std::string& table, int64_t lookups) {
  const BatchSize& batch = config.train.batch;
  const SyncPolicy policy = sync_policy(config.strategy.options.json());
  const SyncGroup& group = policy.groups[policy.group_of(table)];
  const bool apart = group.what != Agreement::gradients && group.start_after == 0;
  double rows = static_cast<double>(batch.rows);
  if (batch.per_rank && !apart) rows *= ranks;
  if (!batch.per_rank && apart) rows = std::ceil(rows / ranks);
  return rows * static_cast<double>(policy.every) * static_cast<double>(lookups);
}

// The weight decay of a parameter, and where it stands.
struct Decay {
  double value = 0;
  std::string key = "optimizer.weight_decay";
};
Decay decay_of(const Options& optimizer, const std::string& parameter) {
  Decay decay{optimizer.real("weight_decay")};
  if (!optimizer.json().contains("groups")) return decay;
  const std::vector<Options> groups = optimizer.sections("groups");
  for (size_t index = 0; index < groups.size(); ++index) {
    if (!NamePattern(groups[index]).found_in(parameter)) continue;
    if (groups[index].has("weight_decay"))
      decay = {groups[index].real("weight_decay"), str("optimizer.groups.", index, ".weight_decay")};
    break;
  }
  return decay;
}

}  // namespace

bool rows_by_size(int64_t table_rows, double lookups) {
  return table_rows >= least_rows && lookups <= most_of_table * static_cast<double>(table_rows);
}

RowDecision row_decision(const RunConfig& config, int ranks, const TableSize& table) {
  RowDecision decision;
  const double lookups = update_lookups(config, ranks, table.name, table.lookups);
  decision.large = rows_by_size(table.rows, lookups);
  const Options& optimizer = config.optimizer.options;
  const Decay decay = decay_of(optimizer, table.name);
  const RowObstacle obstacle = row_obstacle(config.optimizer.name, optimizer, decay.value);
  if (!sync_policy(config.strategy.options.json()).allows_rows(table.name)) {
    decision.reason = "an outer step of diloco moves all rows";
  } else if (!obstacle.key.empty()) {
    decision.key = obstacle.key == "weight_decay" ? decay.key : "optimizer." + obstacle.key;
    decision.reason = obstacle.reason;
  } else if (!table.asked && !decision.large) {
    decision.reason = str("auto takes rows from ", least_rows,
                          " rows on where an update looks up a quarter of them at most, and here it looks up ",
                          std::llround(lookups));
  } else {
    decision.rows = true;
  }
  return decision;
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
  // With groups only the tables' names tell which weight decay is theirs.
  const bool groups = optimizer.json().contains("groups") && !optimizer.sections("groups").empty();
  const RowObstacle obstacle =
      row_obstacle(config.optimizer.name, optimizer, groups ? 0 : optimizer.real("weight_decay"));
  if (!obstacle.key.empty()) optimizer.fail(obstacle.key, obstacle.reason);
  if (!shares) return;
  const SyncPolicy policy = sync_policy(config.strategy.options.json());
  if (std::any_of(policy.groups.begin(), policy.groups.end(),
                  [](const SyncGroup& group) { return group.what != Agreement::gradients; }))
    model.fail("rows",
               "is sharded, and by strategy.sync ranks train apart for a while, each with tables of its own; take "
               "rows: true, or what: gradients");
}

bool rows_want_blocks(const Job& job) {
  if (!asks_for_rows(job.config.value("model", Json::object()))) return false;
  const RunConfig config = RunConfig::from_resolved(job.config);
  if (asks_for_shares(config.model.options) && job.mesh.degree("data") > 1) return true;
  const Options& optimizer = config.optimizer.options;
  const auto obstructs = [&](const Options& section) {
    return section.has("weight_decay") &&
           !row_obstacle(config.optimizer.name, optimizer, section.real("weight_decay")).key.empty();
  };
  if (obstructs(optimizer)) return true;
  if (!optimizer.json().contains("groups")) return false;
  const std::vector<Options> groups = optimizer.sections("groups");
  return std::any_of(groups.begin(), groups.end(), obstructs);
}

void check_row_blocks(const Job& job, const Description& description) {
  if (!asks_for_rows(job.config.value("model", Json::object()))) return;
  const RunConfig config = RunConfig::from_resolved(job.config);
  const int ranks = job.mesh.degree("data");
  const bool shares = asks_for_shares(config.model.options) && ranks > 1;
  for (const BlockDescription& block : description.blocks) {
    for (const TableSize& table : block.tables) {
      const RowDecision decision = row_decision(config, ranks, table);
      if (table.asked && !decision.key.empty())
        throw ConfigError(Mark{}, decision.key, str(decision.reason, "; ", table.name, " is a row table"));
    }
    for (const TiedTable& table : block.tied_tables)
      if (table.asked && shares)
        config.model.options.fail("rows", str("is sharded, and ", table.user, " is tied to ", table.name,
                                              " and needs all rows in every step; take rows: auto, or untie them"));
  }
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

// Why it is none of rows; "": it is one.
std::string why_dense(const Json& config, int ranks, const TableSize& table) {
  // A description may have been made with them.
  const Json& model = config.at("model");
  if (model.contains("rows") && model["rows"] == false) return "model.rows is false";
  const RowDecision decision = row_decision(RunConfig::from_resolved(config), ranks, table);
  return decision.key.empty() ? decision.reason : str(decision.key, " ", decision.reason);
}

// Of a data axis: what is sent in an update of the tables whose gradients are summed, or, `dealt`, whose rows their owners tell.
// `clips`: its norm is needed.
void add_summed(const std::vector<TouchedTable>& tables, bool dealt, const SyncPolicy& policy, const RowRanks& where,
                bool clips, double dense, RankCost& cost) {
  if (tables.empty()) return;
  const auto every = static_cast<double>(policy.every);
  const double sent_bytes = policy.compress == Compression::none ? 0 : 2;
  std::vector<DealtTable> touched;
  for (const TouchedTable& table : tables)
    touched.push_back({table.rows, table.width, table.element, table.unique(every, 1), sent_bytes});
  // Who shares tables says how large its gradients are, too.
  const double head = where.sharing > 1 && sent_bytes == 0 ? 8 : 0;
  const RowCost sent = dealt ? shared_rows_cost(touched, where.ranks, dense)
                             : gathered_rows_cost(touched, where.ranks, dense + head, where.gpus);
  // Who shares a table waits for the others' updates before it looks, and for the figures of the norm where they are needed
  // in every update (Update::reduced_rows).
  const bool figures = clips || sent_bytes > 0 || policy.every > 1;
  const double waits = where.sharing > 1 ? (figures ? 2 : 1) : 0;
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
  const double wanted = ids * batches * ranks;
  if (drawn.empty()) return rows <= 1 ? std::min(wanted, rows) : -rows * std::expm1(wanted * std::log1p(-1 / rows));
  // Between samples, and beyond them, a power of the ids: as frequent ones and seldom ones come, of a Zipf distribution as
  // of most.
  size_t above = 0;
  while (above + 1 < drawn.size() && drawn[above].first < wanted) ++above;
  const std::pair<double, double> from = above > 0 ? drawn[above - 1] : std::pair{1.0, 1.0};
  const std::pair<double, double> to = drawn[above];
  if (wanted <= 1 || to.first <= from.first) return std::min(wanted, to.second);
  const double power = std::log(to.second / from.second) / std::log(to.first / from.first);
  return std::min(rows, from.second * std::pow(wanted / from.first, power));
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
      table.ids = share * (one.row_ids > 0 ? one.row_ids : static_cast<double>(one.lookups));
      table.drawn = one.drawn;
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
  add_summed(summed, dealt, policy, where, Options(config.at("optimizer")).has("clip_norm"), dense, cost);
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
      else if (table.asked || row_decision(RunConfig::from_resolved(config), ranks, table).large)
        lines += str(what, "dense: ", why_dense(config, ranks, table), "\n");
    }
  }
  return lines;
}

}  // namespace convoy
