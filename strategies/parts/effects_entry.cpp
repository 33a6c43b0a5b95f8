#include "strategies/parts/effects_entry.h"

#include <set>

#include "core/config/scalars.h"
#include "core/config/without_effect.h"
#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {
namespace {

void add(std::vector<std::string>& lines, std::string line) {
  if (!line.empty()) lines.push_back(std::move(line));
}

void check_named_once(const Options& section) {
  if (!section.has("recompute") || !section.at("recompute").is_array()) return;
  std::set<std::string> seen;
  const std::vector<std::string> names = section.texts("recompute");
  for (size_t i = 0; i < names.size(); ++i)
    if (!seen.insert(names[i]).second)
      section.fail(str("recompute.", i), str("names ", names[i], " a second time; name each block once"));
}

// Whether each rank of the data axis has parameters of its own, which could drift apart and be averaged.
enum class Copies { none, shared, whole };

Copies copies_of(const Options& section) {
  if (section.has("mesh")) {
    const Json& data = section.at("mesh").value("data", Json(1));
    const bool shares = data.is_object() && data.value("how", "ddp") == "fsdp";
    const Json degree = data.is_object() ? data.value("degree", Json(1)) : data;
    return shares ? Copies::shared : degree == 1 ? Copies::none : Copies::whole;
  }
  if (section.json().contains("shard")) return Copies::shared;
  return section.json().contains("bucket_cap_mb") ? Copies::whole : Copies::none;
}

// Of the section `sync` or one of its groups, where ranks have no copies of their own.
void check_agreement(const Options& section, const std::string& strategy, Copies copies) {
  const std::string agreed = "gradients";
  if (!section.has("what") || section.text("what") == agreed) return;
  const std::string& what = section.text("what");
  if (what != "parameters" && what != "diloco") {
    const std::string near = nearest(what, {agreed});
    section.fail("what",
                 str("is ", shown(what), ", must be gradients", near.empty() ? "" : "; did you mean " + near + "?"));
  }
  const std::string trained = str("is ", what, ": ranks would train copies of the parameters apart for a while and ",
                                  what == "diloco" ? "step along their mean difference" : "average them", ", and ");
  if (copies == Copies::shared)
    section.fail("what", str(trained,
                             "here they divide one copy among them, so there are none to train apart; take "
                             "what: gradients, or a data axis of whole replicas"));
  section.fail("what", str(trained, "strategy ", strategy, " has one copy only; take what: gradients"));
}

std::vector<std::string> check_agreements(const RunConfig& config) {
  const Options& section = config.strategy.options;
  if (!section.has("sync")) return {};
  const Copies copies = copies_of(section);
  if (copies == Copies::whole) return check_sync(config, true);
  const Options sync = section.section("sync");
  check_agreement(sync, config.strategy.name, copies);
  if (!sync.json().contains("groups")) return {};
  for (const Options& group : sync.sections("groups")) check_agreement(group, config.strategy.name, copies);
  return check_sync(config, false);
}

}  // namespace

std::vector<std::string> check_shared_effects(const RunConfig& config) {
  std::vector<std::string> left_out;
  const Options& section = config.strategy.options;
  for (std::string& line : check_agreements(config)) left_out.push_back(std::move(line));
  check_named_once(section);
  if (config.precision != "fp16" && section.has("loss_scale"))
    add(left_out,
        refuse_without_effect(section, "loss_scale",
                              str("is for precision fp16, whose small gradients it keeps above zero, and precision "
                                  "is ",
                                  config.precision, "; leave it out, or take fp16"),
                              {mark_of(config.resolved, "precision")}));
  return left_out;
}

std::vector<std::string> check_shard_effects(const Options& section) {
  std::vector<std::string> left_out;
  if (!section.has("shard")) return left_out;
  const std::string& shard = section.text("shard");
  if (shard != "parameters")
    add(left_out,
        refuse_without_effect(section, "reshard_after_forward",
                              str("is for shard: parameters, which are given back and gathered again, and shard is ",
                                  shard, ": parameters stay whole; leave one of them out"),
                              {section.mark("shard")}));
  return left_out;
}

std::vector<std::string> refuse_keys_of(const Options& section, const std::vector<std::string>& keys,
                                        const std::string& reason, const Mark& because) {
  std::vector<std::string> left_out;
  for (const std::string& key : keys) add(left_out, refuse_without_effect(section, key, reason, {because}));
  return left_out;
}

}  // namespace convoy
