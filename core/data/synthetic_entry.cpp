// synthetic: what its user can write.
#include <algorithm>

#include "core/config/without_effect.h"
#include "core/data/interaction_options.h"
#include "core/describe.h"

namespace convoy {
namespace {

struct Key {
  const char* name;
  std::vector<std::string> kinds;  // that it is for
};

// All but `rows`, which every kind has.
const std::vector<Key>& keys_by_kind() {
  const std::vector<std::string> vectors = {"classification", "regression"}, tokens = {"tokens"},
                                 interactions = {"interactions"};
  static const std::vector<Key> keys = {
      {"evaluate_rows", {"classification", "regression", "tokens"}},
      {"features", vectors},
      {"classes", {"classification"}},
      {"targets", {"regression"}},
      {"noise", vectors},
      {"vocabulary", tokens},
      {"length", tokens},
      {"users", interactions},
      {"items", interactions},
      {"context", interactions},
      {"user_exponent", interactions},
      {"item_exponent", interactions},
      {"preference", interactions},
      {"groups", interactions},
      {"cache", interactions},
      {"negatives", interactions},
      {"ranking", interactions},
      {"candidates", interactions},
      {"evaluate", interactions},
  };
  return keys;
}

void check(const Options& options) {
  const std::string& kind = options.text("kind");
  for (const Key& key : keys_by_kind())
    if (std::find(key.kinds.begin(), key.kinds.end(), kind) == key.kinds.end())
      refuse_without_effect(options, key.name,
                            str("is for kind: ", join(key.kinds, ", "), ", and kind is ", kind, "; leave it out"),
                            {options.mark("kind")});
  const bool vectors = kind == "classification" || kind == "regression";
  if (vectors && options.integers("features").empty()) options.fail("features", "needs at least one size");
  if (kind != "interactions") return;
  if (options.integer("groups") > options.integer("items")) options.fail("groups", "are more than items");
  check_ranking(options);
}

}  // namespace

Entry synthetic_entry() {
  Entry entry;
  entry.name = "synthetic";
  entry.help = "made-up data of any size, seeded, without files";
  entry.options = {
      describe::choice("kind", "what is made up", {"classification", "regression", "interactions", "tokens"},
                       "classification"),
      describe::integer("rows", "to train on", 10000).at_least(1).at_most(double(int64_t(1) << 40)),
      describe::integer("evaluate_rows", "to evaluate on (interactions: one per user instead)", 1000)
          .at_least(0)
          .at_most(double(int64_t(1) << 40)),
      describe::list("features", "shape of a row's features; [3, 32, 32] makes images",
                     describe::integer("", "a size").at_least(1).at_most(1 << 24), Json::array({32})),
      describe::integer("classes", "classification", 10).at_least(1).at_most(1 << 24),
      describe::integer("targets", "regression: numbers to predict", 1).at_least(1).at_most(1 << 24),
      describe::real("noise", "standard deviation, against features of about 1", 1.0).at_least(0),
      describe::integer("vocabulary", "tokens: how many there are", 256).at_least(2).at_most(1 << 24),
      describe::integer("length", "tokens: of a sequence", 128).at_least(1).at_most(1 << 24),
      describe::integer("users", "interactions", 1000).at_least(1).at_most(2147483647),
      describe::integer("items", "interactions", 500).at_least(2).at_most(2147483647),
      describe::integer("context", "interactions: columns of context", 0).at_least(0).at_most(100000),
      describe::real("user_exponent", "interactions: of the Zipf distribution of users", 0.6).at_least(0),
      describe::real("item_exponent", "interactions: of the Zipf distribution of items", 0.8).at_least(0),
      describe::real("preference", "interactions: share of a user's items that are of the user's group", 0.8)
          .at_least(0)
          .at_most(1),
      describe::integer("groups", "interactions: of users and items", 16).at_least(1).at_most(2147483647),
      describe::text(
          "cache",
          "interactions: folder that keeps the columns, so that later starts map them, all ranks of a host the "
          "same memory; made anew at each start by default")
          .may_be_null(),
  };
  for (auto& option : ranking_options()) entry.options.push_back(std::move(option));
  entry.check = check;
  return entry;
}

}  // namespace convoy
