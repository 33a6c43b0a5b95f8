// Whole checkpoints: one layout's state read by another, damage, failing storage, and leftovers.
#include "core/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/error.h"
#include "core/checkpoint/restore.h"
#include "core/checkpoint/stored_files.h"
#include "core/communicator.h"
#include "core/state.h"
#include "core/tensors/safetensors.h"
#include "tests/core/checkpoint/saved_state.h"

namespace convoy {
namespace {

using namespace saved_state;

TEST(Checkpoint, EveryLayoutReadsEveryOther) {
  const std::pair<const char*, Layout> layouts[] = {
      {"whole", whole}, {"rows", rows}, {"columns", columns}, {"flat", flat}};
  for (const auto& [from_name, from] : layouts) {
    const TemporaryFolder folder;
    const Layout writes = from;
    over_ranks(3, [&](const Context& context) {
      StateOwner held = state_owner(writes, context.rank, context.size, true);
      Checkpoints(context, folder.path(), 2).save(held, {10, trainer_part(10)});
    });
    for (const auto& [to_name, to] : layouts) {
      for (int size : {1, 2, 4}) {
        const Layout reads = to;
        SCOPED_TRACE(str(from_name, " by 3 read as ", to_name, " by ", size));
        over_ranks(size, [&](const Context& context) {
          Checkpoints checkpoints(context, folder.path(), 2);
          const auto info = checkpoints.newest();
          ASSERT_TRUE(info.has_value());
          EXPECT_EQ(info->step, 10);
          EXPECT_EQ(info->trainer["rows"], 80);
          EXPECT_EQ(info->config["name"], "test");
          StateOwner held = state_owner(reads, context.rank, context.size, false);
          checkpoints.load(held, *info);
          expect_restored(held);
        });
      }
    }
  }
}

// `convoy verify` compares boxes and flat ranges of several ranks, assembled to whole tensors.
TEST(Checkpoint, PiecesOfEveryLayoutCoverTheTensors) {
  for (const Layout& layout : {Layout(whole), Layout(rows), Layout(columns), Layout(flat)}) {
    for (int size : {1, 3}) {
      const TemporaryFolder folder;
      over_ranks(size, [&](const Context& context) {
        StateOwner held = state_owner(layout, context.rank, context.size, true);
        Checkpoints(context, folder.path(), 0).save(held, {4, Json::object()}, true);
      });
      const std::map<std::string, at::Tensor> expected{{"parameter/a.weight", weight_value()},
                                                       {"moment/exp_avg/a.weight", weight_value() * 2},
                                                       {"gradient/a.weight", weight_value() * 3},
                                                       {"parameter/b.bias", bias_value()},
                                                       {"counter/count", count_value()}};
      for (const TensorDifference& difference : compare(stored_state(folder / "step-4"), view_of(expected)))
        EXPECT_TRUE(difference.same_bytes) << difference.kind << " " << difference.name << ": " << difference.fault;
      // One element off, in a piece of the last rank.
      auto changed = expected;
      changed["parameter/a.weight"] = weight_value();
      changed["parameter/a.weight"][6][4] += 34 * 1e-3;
      const auto differences = compare(stored_state(folder / "step-4"), view_of(changed));
      const TensorDifference* worst = worst_of(differences);
      EXPECT_EQ(worst->name, "a.weight");
      EXPECT_NEAR(worst->relative, 1e-3, 1e-6);
      EXPECT_EQ(std::count_if(differences.begin(), differences.end(), [](const auto& d) { return !d.same_bytes; }), 1);
    }
  }
}

TEST(Checkpoint, FilesHaveSortedKeysAndNoRunData) {
  const TemporaryFolder a, b;
  save_alone(a.path(), 5);
  save_alone(b.path(), 7000);
  const SafetensorsFile one(a / "step-5/rank-0.safetensors"), other(b / "step-7000/rank-0.safetensors");
  EXPECT_EQ(one.hash(), other.hash());
  const std::vector<std::string> expected{"counter/count", "moment/exp_avg/a.weight", "parameter/a.weight",
                                          "parameter/b.bias"};
  EXPECT_EQ(one.names(), expected);
  EXPECT_EQ(read_file(a / "latest", 100), "step-5\n");
}

TEST(Checkpoint, KeepsTheLastAndRemovesLeftovers) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / ".step-3.tmp-abc/sub");
  std::filesystem::create_directories(folder / ".old-step-1-abc");
  std::ofstream(folder / ".latest-abc") << "step-3";
  for (int64_t step : {1, 2, 10, 20}) save_alone(folder.path(), step, 2);
  const std::vector<std::string> expected{"latest", "step-10", "step-20"};
  EXPECT_EQ(names_in(folder.path()), expected);
  save_alone(folder.path(), 20, 2);  // again, after a resume that went back
  EXPECT_EQ(names_in(folder.path()), expected);
  save_alone(folder.path(), 30, 1);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step-30"}));
}

TEST(Checkpoint, NewestSkipsADamagedCheckpoint) {
  const TemporaryFolder folder;
  const Context context = alone();
  EXPECT_FALSE(Checkpoints(context, folder / "absent", 0).newest().has_value());
  for (int64_t step : {1, 2, 3, 4}) save_alone(folder.path(), step);
  const auto newest = [&] { return Checkpoints(context, folder.path(), 0).newest(); };
  EXPECT_EQ(newest()->step, 4);
  std::filesystem::remove(folder / "step-4/rank-0.safetensors");
  EXPECT_EQ(newest()->step, 3);
  flip(folder / "step-3/rank-0.safetensors", std::filesystem::file_size(folder / "step-3/rank-0.safetensors") - 1);
  EXPECT_EQ(newest()->step, 2);
  std::filesystem::resize_file(folder / "step-2/manifest.json", 100);
  EXPECT_EQ(newest()->step, 1);
  std::filesystem::remove(folder / "step-1/manifest.json");
  // A new start would overwrite the damaged state.
  try {
    newest();
    FAIL() << "none is whole";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::corrupt_data);
    EXPECT_NE(std::string(error.what()).find("step-4/rank-0.safetensors"), std::string::npos) << error.what();
  }
}

TEST(Checkpoint, NewestSkipsFilesThatAreNoCheckpoints) {
  const TemporaryFolder folder;
  const Context context = alone();
  for (int64_t step : {1, 2, 3, 4}) save_alone(folder.path(), step);
  const auto replace = [&](const std::string& name) {
    std::filesystem::remove(folder / name);
    return folder / name;
  };
  ASSERT_EQ(mkfifo(replace("step-4/rank-0.safetensors").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo(replace("step-3/manifest.json").c_str(), 0600), 0);
  std::filesystem::create_directory_symlink(folder.path(), replace("step-2/manifest.json"));
  const auto newest = Checkpoints(context, folder.path(), 0).newest();
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, 1);
}

TEST(Checkpoint, FindsEveryFlippedByte) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 1);
  for (const char* name : {"manifest.json", "rank-0.safetensors"}) {
    const std::string path = folder / (std::string("step-1/") + name);
    const size_t size = std::filesystem::file_size(path);
    for (size_t at = 0; at < size; ++at) {
      flip(path, at);
      try {
        check_files(folder / "step-1", read_manifest_file(folder / "step-1"));
        ADD_FAILURE() << "byte " << at << " of " << name << " was believed";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Failure::corrupt_data);
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
      flip(path, at);
    }
  }
  EXPECT_NO_THROW(check_files(folder / "step-1", read_manifest_file(folder / "step-1")));
}

// Someone edited the manifest and computed its hash again.
TEST(Checkpoint, ChecksTheTensorsThatTheManifestNames) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 1);
  const Manifest saved = read_manifest_file(folder / "step-1");
  ASSERT_FALSE(saved.pieces.empty());
  const auto message = [&](const std::function<void(StoredPiece&)>& change) -> std::string {
    Manifest changed = saved;
    change(changed.pieces.front());
    try {
      check_files(folder / "step-1", changed);
    } catch (const Error& error) {
      return str(name_of(error.kind()), ": ", error.what());
    }
    return "no error";
  };
  EXPECT_EQ(message([](StoredPiece&) {}), "no error");
  const std::string other = message([](StoredPiece& piece) { piece.tensor = "nothing"; });
  EXPECT_EQ(other.rfind("corrupt_data: ", 0), 0u) << other;
  EXPECT_NE(other.find("has no tensor 'nothing'"), std::string::npos) << other;
  for (const StoredPiece& piece : saved.pieces)
    if (piece.tensor != saved.pieces.front().tensor &&
        tensor_shape(piece.piece) != tensor_shape(saved.pieces.front().piece)) {
      const std::string shape = message([&](StoredPiece& first) { first.tensor = piece.tensor; });
      EXPECT_EQ(shape.rfind("corrupt_data: ", 0), 0u) << shape;
      return;
    }
  ADD_FAILURE() << "all tensors have one shape";
}

TEST(Checkpoint, SkipsAStepFolderWithTheWrongNumber) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 3);
  std::filesystem::copy(folder / "step-3", folder / "step-9");
  const Context context = alone();
  const auto info = Checkpoints(context, folder.path(), 0).newest();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 3);
}

// The loss scaler's counters, for example, exist with fp16 only.
TEST(Checkpoint, OptionalCountersMayAppearAndDisappear) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 1);
  const Context context = alone();
  Checkpoints checkpoints(context, folder.path(), 0);
  StateOwner more = state_owner(whole, 0, 1, false);
  more.entries.push_back(entry("scale", StateKind::counter, Piece::whole({}), at::full({}, 7, at::kDouble)));
  checkpoints.load(more, *checkpoints.newest());
  EXPECT_EQ(more.entries.back().tensor.item<double>(), 7);
  more.entries.pop_back();
  expect_restored(more);
  StateOwner fewer = state_owner(whole, 0, 1, false);
  fewer.entries.pop_back();
  EXPECT_NO_THROW(checkpoints.load(fewer, *checkpoints.newest()));
}

TEST(Checkpoint, NamesMismatches) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 1);
  const Context context = alone();
  Checkpoints checkpoints(context, folder.path(), 0);
  const auto message = [&](StateOwner& held) -> std::string {
    try {
      checkpoints.load(held, *checkpoints.newest());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "accepted";
  };
  StateOwner more = state_owner(whole, 0, 1, false);
  more.entries.push_back(entry("c.weight", StateKind::parameter, Piece::whole({2}), at::zeros({2})));
  EXPECT_NE(message(more).find("lacks parameter/c.weight"), std::string::npos) << message(more);
  StateOwner fewer = state_owner(whole, 0, 1, false);
  fewer.entries.erase(fewer.entries.begin());
  EXPECT_NE(message(fewer).find("it also has parameter/b.bias"), std::string::npos) << message(fewer);
  StateOwner other = state_owner(whole, 0, 1, false);
  other.entries[0] = entry("b.bias", StateKind::parameter, Piece::whole({8}), at::zeros({8}, at::kDouble));
  EXPECT_NE(message(other).find("parameter/b.bias has shape"), std::string::npos) << message(other);
}

TEST(Checkpoint, LoadsIntoOtherDtypesAndStrides) {
  const TemporaryFolder folder;
  save_alone(folder.path(), 1);
  const Context context = alone();
  Checkpoints checkpoints(context, folder.path(), 0);
  StateOwner held = state_owner(whole, 0, 1, false);
  held.entries[0].tensor = at::zeros({7}, at::kFloat);
  held.entries[1].tensor = at::zeros({5, 7}, at::kFloat).t();
  checkpoints.load(held, *checkpoints.newest());
  EXPECT_TRUE(held.entries[0].tensor.equal(bias_value().to(at::kFloat)));
  EXPECT_TRUE(held.entries[1].tensor.equal(weight_value()));
}

// Data for tests of numbering only.
class UserRows : public Dataset {
 public:
  explicit UserRows(std::vector<std::string> users) : users_(std::move(users)) {}
  Schema schema() const override { return {}; }
  int64_t size(Split) const override { return 3; }
  int64_t instances_per_row() const override { return 1; }
  Batch gather(Split, const at::Tensor&, int64_t, BatchBuffers&) const override { return {}; }
  DataContents contents() const override {
    DataContents made{"bytes of " + join(users_, " "), 3, {}};
    made.lists["users"] = {NameList(users_)};
    return made;
  }

 private:
  const std::vector<std::string> users_;
};

TEST(Checkpoint, StoresTheDataFingerprintAndRefusesOtherData) {
  const TemporaryFolder folder;
  const Context context = alone();
  Checkpoints checkpoints(context, folder.path(), 0);
  const UserRows first({"a", "b", "c"}), turned({"b", "a", "c"});
  StateOwner held = state_owner(whole, 0, 1, true);
  checkpoints.save(held, {1, trainer_part(1), {}, &first});
  const CheckpointInfo info = checkpoints.find(folder / "step-1");
  EXPECT_EQ(info.fingerprint, first.contents().fingerprint);
  checkpoints.load(held, info, &first);
  EXPECT_THROW(checkpoints.load(held, info, &turned), Error);
  checkpoints.load(held, info);  // without data nothing is compared
  // A checkpoint whose file of lists is damaged is refused.
  flip(folder / "step-1/data.safetensors", 100);
  EXPECT_THROW(checkpoints.find(folder / "step-1"), Error);
  EXPECT_FALSE(resumed_data(folder / "step-1", "").has_value());
  EXPECT_FALSE(resumed_data("never", folder.path()).has_value());
}

TEST(Checkpoint, NumbersMembersOfAnEnsembleOnce) {
  const TemporaryFolder folder;
  const Context context = alone();
  StateOwner held = state_owner(whole, 0, 1, true);
  const UserRows first({"a", "b"}), turned({"b", "a"});
  const auto saved = [&](const std::string& name, const UserRows& data) {
    Checkpoints(context, folder / name, 0).save(held, {1, trainer_part(1), {}, &data});
    return folder / name + "/step-1";
  };
  const std::string one = saved("one", first), same = saved("same", first), other = saved("other", turned);
  const auto contents = stored_contents(joined({one, same}), one);
  ASSERT_TRUE(contents.has_value());
  EXPECT_TRUE(data_change(*contents, first.contents()).none());
  EXPECT_THROW(joined({one, other}), Error);
}

TEST(Checkpoint, FindsStepFoldersAndRunFolders) {
  const TemporaryFolder folder;
  for (int64_t step : {1, 2}) save_alone(folder / "checkpoints", step);
  const Context context = alone();
  Checkpoints checkpoints(context, folder / "elsewhere", 0);
  EXPECT_EQ(checkpoints.find(folder.path()).step, 2);
  EXPECT_EQ(checkpoints.find(folder / "checkpoints").step, 2);
  EXPECT_EQ(checkpoints.find(folder / "checkpoints/step-1").step, 1);
  flip(folder / "checkpoints/step-2/rank-0.safetensors", 200);
  EXPECT_EQ(checkpoints.find(folder.path()).step, 1);
  const auto refusal = [&](const std::string& path) {
    try {
      checkpoints.find(path);
    } catch (const Error& error) {
      return str(name_of(error.kind()), ": ", error.what());
    }
    return std::string();
  };
  const std::string damaged = refusal(folder / "checkpoints/step-2");
  EXPECT_EQ(damaged.rfind("corrupt_data: train.resume: ", 0), 0u) << damaged;
  EXPECT_NE(damaged.find("name an older one: "), std::string::npos) << damaged;
  EXPECT_EQ(refusal(folder / "nowhere").rfind("config: ", 0), 0u);
}

TEST(Checkpoint, RefusesASaveWithMissingOwners) {
  const TemporaryFolder folder;
  const Context context = alone();
  StateOwner held = state_owner(rows, 0, 2, true);  // half of it, and no rank holds the rest
  EXPECT_THROW(Checkpoints(context, folder.path(), 0).save(held, {1, Json::object()}), Error);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

// Every operation of a save fails once: the old state stays, nothing new remains, and the error has the reason.
TEST(Checkpoint, KeepsTheOldCheckpointIfStorageFails) {
  for (int cause : {ENOSPC, EIO}) {
    for (int at = 0;; ++at) {
      const TemporaryFolder folder;
      save_alone(folder.path(), 1);
      FailingFiles files(at, cause);
      bool failed = false;
      try {
        save_alone(folder.path(), 2, 1, files);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.kind(), Failure::io);
        EXPECT_NE(std::string(error.what()).find(std::strerror(cause)), std::string::npos) << error.what();
      }
      const Context context = alone();
      const auto newest = Checkpoints(context, folder.path(), 0).newest();
      ASSERT_TRUE(newest.has_value()) << "operation " << at << " " << files.failed_at();
      EXPECT_EQ(newest->step, failed ? 1 : 2) << "operation " << at << " " << files.failed_at();
      for (const std::string& name : names_in(folder.path())) {
        EXPECT_NE(name.front(), '.') << name << " is left after operation " << at << " " << files.failed_at();
      }
      if (files.failed_at().empty()) {
        EXPECT_GT(at, 10);  // every operation has failed once
        break;
      }
    }
  }
}

TEST(Checkpoint, ReportsOneRanksFailureToAllRanks) {
  const TemporaryFolder folder;
  std::atomic<int> reported{0};
  over_ranks(3, [&](const Context& context) {
    FailingFiles files(context.rank == 1 ? 1 : 1 << 30, ENOSPC);  // within its write
    StateOwner held = state_owner(rows, context.rank, context.size, true);
    try {
      Checkpoints(context, folder.path(), 0, files).save(held, {1, Json::object()});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::io);
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      ++reported;
    }
  });
  EXPECT_EQ(reported, 3);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace convoy
