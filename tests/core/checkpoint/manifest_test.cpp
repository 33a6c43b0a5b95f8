// Manifests with a right hash and impossible values.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/base/error.h"
#include "core/checkpoint/manifest.h"
#include "tests/core/checkpoint/saved_state.h"

namespace convoy {
namespace {

using namespace saved_state;

// Each manifest has a right hash; the error names the field.
TEST(Checkpoint, ChecksTheTrainersFields) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 3);
  const Manifest good = read_manifest_file(folder / "step-3");
  const auto reason = [&](const std::string& field, const Json& value) -> std::string {
    Manifest bad = good;
    if (field == "step")
      bad.step = value.get<int64_t>();
    else if (field == "trainer")
      bad.trainer = value;
    else if (value.is_discarded())
      bad.trainer.erase(field);
    else
      bad.trainer[field] = value;
    try {
      manifest_from_text(to_text(bad), "m");
      return "believed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::corrupt_data);
      return error.what();
    }
  };
  const Json none(Json::value_t::discarded);
  const std::vector<std::pair<std::string, std::vector<Json>>> cases{
      {"step", {-1, 4, INT64_MAX}},
      {"trainer", {1, nullptr, Json::array()}},
      {"rows", {none, -1, 0, "8", 1.5, nullptr, INT64_MAX, UINT64_MAX, Json::array()}},
      {"global_rows", {0, -4, "4", 1e300}},
      {"steps_per_epoch", {0, "4"}},
      {"world_size", {0, "2", (1 << 24) + 1, int64_t{1} << 40}},
      {"seed", {-1, "x"}},
      {"train_seconds", {none, -1, "2", nullptr, 1e300}},
      {"generators", {1, Json::object(), {{"layout", 1}}}},
      {"ranks",
       {1,
        {{"0", 1}},
        {{"-1", Json::object()}},
        {{"x", Json::object()}},
        {{"0", {{"generators", 1}}}},
        {{"0", {{"generators", {{"cpu", 1}}}}}},
        {{"0", {{"generators", {{"cpu", "abcd"}}}}}},
        {{"0", {{"generators", {{"cuda:0", "abc"}}}}}},
        {{"0", {{"generators", {{"cuda:0", "no"}}}}}}}},
      {"evaluate_seconds", {-1, true}},
      {"evaluation_owed", {1, "true", nullptr}},
      {"metrics",
       {none,
        1,
        Json::array(),
        {{"loss", 1}},
        {{"loss", {{"last", "much"}}}},
        {{"loss", {{"best_step", -1}}}},
        {{"loss", {{"best_step", 4}}}},
        {{"lo\nss", {{"last", 1}}}},
        {{"loss", {{"best_step", "3"}}}},
        {{"loss", {{"members", 3}}}},
        {{"loss", {{"lower_is_better", 1}}}}}}};
  for (const auto& [field, values] : cases)
    for (const Json& value : values)
      EXPECT_NE(reason(field, value).find(field), std::string::npos)
          << field << " = " << (value.is_discarded() ? "missing" : value.dump()) << ": " << reason(field, value);
  const Json metrics = {{"loss", {{"last", 1.5}, {"best", "nan"}, {"best_step", 3}, {"members", {1, "inf"}}}}};
  EXPECT_EQ(reason("metrics", metrics), "believed");
  EXPECT_EQ(reason("trainer", Json::object()), "believed");  // as `convoy verify` writes it
}

TEST(Checkpoint, TheConfigurationMustHaveItsSections) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 3);
  const auto reason = [&](const Json& config, bool snapshot = false) -> std::string {
    Manifest changed = read_manifest_file(folder / "step-3");
    changed.config = config;
    if (snapshot) changed.trainer = Json::object();
    try {
      manifest_from_text(to_text(changed), "m");
      return "believed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::corrupt_data);
      return error.what();
    }
  };
  EXPECT_EQ(reason(Json::object()), "m: no valid manifest: 'config.model' is missing");
  EXPECT_EQ(reason(Json::object(), true), "believed");  // a snapshot of `convoy verify`
  const Json good = read_manifest_file(folder / "step-3").config;
  EXPECT_EQ(reason({{"program", {"mine"}}, {"model", nullptr}}), "believed");
  for (const char* name : {"model", "data", "optimizer", "train", "strategy", "launch"})
    for (const Json& value : {Json(5), Json("x"), Json::array()}) {
      Json bad = good;
      bad[name] = value;
      EXPECT_NE(reason(bad).find(str("'config.", name, "' is ", value.dump())), std::string::npos) << reason(bad);
    }
}

// 25 rows in batches of 10: 3 steps an epoch, and 6 steps in all.
TEST(Checkpoint, ChecksTheLengthAgainstConfigurationAndData) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 3);
  Manifest good = read_manifest_file(folder / "step-3");
  good.config["train"] = {{"epochs", 2}, {"max_steps", nullptr}, {"batch", {{"global", 10}, {"per_rank", nullptr}}}};
  good.data = {{"fingerprint", "f"}, {"rows", 25}, {"lists", Json::object()}};
  good.trainer.update({{"global_rows", 10}, {"steps_per_epoch", 3}, {"total_steps", 6}});
  const auto reason = [&](const std::function<void(Manifest&)>& change) -> std::string {
    Manifest changed = good;
    change(changed);
    try {
      manifest_from_text(to_text(changed), "m");
      return "believed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::corrupt_data);
      return error.what();
    }
  };
  const auto refuses = [&](const std::string& field, const std::function<void(Manifest&)>& change) {
    EXPECT_NE(reason(change).find("'trainer." + field + "'"), std::string::npos) << reason(change);
  };
  refuses("global_rows", [](Manifest& m) { m.trainer["global_rows"] = 5; });
  refuses("global_rows", [](Manifest& m) { m.config["train"]["batch"] = {{"per_rank", 4}}; });
  refuses("steps_per_epoch", [](Manifest& m) { m.trainer["steps_per_epoch"] = 4; });
  refuses("total_steps", [](Manifest& m) { m.trainer["steps_per_epoch"] = 2; });
  refuses("total_steps", [](Manifest& m) { m.trainer["total_steps"] = 7; });

  const auto believes = [&](const char* what, const std::function<void(Manifest&)>& change) {
    EXPECT_EQ(reason(change), "believed") << what;
  };
  believes("a run as it is", [](Manifest&) {});
  believes("two ranks", [](Manifest& m) { m.config["train"]["batch"] = {{"per_rank", 5}, {"global", nullptr}}; });
  believes("held-out rows", [](Manifest& m) { m.trainer.update({{"steps_per_epoch", 2}, {"total_steps", 4}}); });
  believes("an end within an epoch", [](Manifest& m) {
    m.config["train"]["max_steps"] = 4;
    m.trainer["total_steps"] = 4;
  });
  believes("no epochs", [](Manifest& m) {
    m.config["train"].update({{"epochs", nullptr}, {"max_steps", 400}});
    m.trainer["total_steps"] = 400;
  });
  believes("rows of several batch sizes and members", [](Manifest& m) { m.trainer["rows"] = 1234; });
  believes("a plugin's rows", [](Manifest& m) {
    m.config["plugins"] = {"/p.so"};
    m.data["rows"] = 1;
  });
  believes("an older version", [](Manifest& m) {
    for (const char* field : {"global_rows", "steps_per_epoch", "total_steps"}) m.trainer.erase(field);
  });
}

TEST(Checkpoint, NewestSkipsAnInvalidManifest) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 2);
  save_alone(folder.path(), 3);
  Manifest bad = read_manifest_file(folder / "step-3");
  bad.pieces.push_back(bad.pieces.front());
  std::ofstream(folder / "step-3/manifest.json") << to_text(bad);
  const Context context = alone();
  const auto info = Checkpoints(context, folder.path(), 0).newest();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 2);
}

TEST(Checkpoint, ChecksManifestsWithGoodHashes) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 1);
  const Manifest good = read_manifest_file(folder / "step-1");
  const auto refused = [](const Manifest& manifest) {
    try {
      manifest_from_text(to_text(manifest), "m");
      return false;
    } catch (const Error& error) {
      return error.kind() == Failure::corrupt_data;
    }
  };
  EXPECT_FALSE(refused(good));
  for (const char* name : {"../step-0/rank-0.safetensors", "/etc/passwd", "..", ".", "", "a/b", ".hidden"}) {
    Manifest bad = good;
    bad.files[name] = bad.files.begin()->second;
    bad.pieces[0].file = name;
    EXPECT_TRUE(refused(bad)) << name;
  }
  Manifest unlisted = good;
  unlisted.pieces[0].file = "rank-7.safetensors";
  EXPECT_TRUE(refused(unlisted));
  Manifest outside = good;
  for (StoredPiece& piece : outside.pieces) {
    if (!piece.piece.offset.empty()) piece.piece.offset[0] = 100;
  }
  EXPECT_TRUE(refused(outside));
  const auto entries = [&](const std::function<void(std::vector<StoredPiece>&)>& change) {
    Manifest bad = good;
    change(bad.pieces);
    return refused(bad);
  };
  EXPECT_TRUE(entries([](auto& pieces) { pieces.clear(); }));
  EXPECT_TRUE(entries([](auto& pieces) { pieces.push_back(pieces[0]); })) << "the same tensor twice";
  EXPECT_TRUE(entries([](auto& pieces) {
    pieces.push_back(pieces[0]);
    pieces.back().tensor += "#1";
  })) << "more elements than there are";
  EXPECT_TRUE(entries([](auto& pieces) { pieces[0].key = "x"; }));
  EXPECT_TRUE(entries([](auto& pieces) { pieces[0].kind = "x"; }));
  EXPECT_TRUE(entries([](auto& pieces) { pieces[0].member = 1; })) << "its key names no member";
  for (const char* data :
       {"[]", "{}", R"({"fingerprint": 1, "rows": 1, "lists": {}})", R"({"fingerprint": "f", "rows": -1, "lists": {}})",
        R"({"fingerprint": "f", "rows": 1, "lists": {"users": -1}})",
        R"({"fingerprint": "f", "rows": 1, "lists": {"users": 1}, "file": "rank-7.safetensors"})"}) {
    Manifest bad = good;
    bad.data = Json::parse(data);
    EXPECT_TRUE(refused(bad)) << data;
  }
}

}  // namespace
}  // namespace convoy
