// Results are there completely or not at all, and names of checkpoints are found.
#include "core/files/output_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/files/run_reference.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (temporary_folder() / "convoy-output-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  static std::string failure(const std::function<void()>& act, Failure kind) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    return "";
  }
  std::string folder_;
};

// Fails at the given call, as a full disk does.
class FullDisk : public FileSystem {
 public:
  enum class At { write, close, rename };
  explicit FullDisk(At at) : at_(at) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    struct Failing : WritableFile {
      Failing(std::unique_ptr<WritableFile> file, At at) : file(std::move(file)), at(at) {}
      void write(const void* data, size_t bytes) override {
        if (at == At::write) throw Error(Failure::io, "no space left");
        file->write(data, bytes);
      }
      void close() override {
        if (at == At::close) throw Error(Failure::io, "no space left");
        file->close();
      }
      std::unique_ptr<WritableFile> file;
      At at;
    };
    return std::make_unique<Failing>(system_files().create(path), at_);
  }
  void make_folder(const std::string& path) override { system_files().make_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    if (at_ == At::rename) throw Error(Failure::io, "no space left");
    system_files().rename(from, to);
  }
  void sync_folder(const std::string& path) override { system_files().sync_folder(path); }
  void remove_all(const std::string& path) override { system_files().remove_all(path); }

 private:
  At at_;
};

TEST_F(OutputTest, AppearsWholeAtTheEnd) {
  const std::string large(1 << 20, 'x');
  {
    OutputFile file(at("out.csv"), false);
    file.write("a,b\n");
    file.write(large);
    file.write("end");
    EXPECT_FALSE(fs::exists(at("out.csv")));
    EXPECT_EQ(file.bytes(), 4 + (1 << 20) + 3);
    file.commit();
  }
  EXPECT_EQ(read_file(at("out.csv")), "a,b\n" + large + "end");
  EXPECT_THAT(names_in(folder_), ElementsAre("out.csv"));
}

TEST_F(OutputTest, LeavesNothingWithoutACommit) {
  { OutputFile(at("out"), false).write("half"); }
  EXPECT_THAT(names_in(folder_), IsEmpty());
}

TEST_F(OutputTest, AFullDiskLeavesTheOlderResult) {
  for (const FullDisk::At where : {FullDisk::At::write, FullDisk::At::close, FullDisk::At::rename}) {
    std::ofstream(at("out")) << "older";
    FullDisk disk(where);
    EXPECT_THAT(failure(
                    [&] {
                      OutputFile file(at("out"), true, disk);
                      file.write("newer");
                      file.commit();
                    },
                    Failure::io),
                HasSubstr("no space left"));
    EXPECT_EQ(read_file(at("out")), "older");
    EXPECT_THAT(names_in(folder_), ElementsAre("out"));
  }
}

TEST_F(OutputTest, AnExistingResultIsKept) {
  std::ofstream(at("out")) << "older";
  EXPECT_THAT(failure([&] { check_output_path(at("out"), false, "--to"); }, Failure::output), HasSubstr("--force"));
  EXPECT_EQ(failure([&] { check_output_path(at("out"), true, "--to"); }, Failure::output), "");
  OutputFile file(at("new"), false);
  file.write("mine");
  std::ofstream(at("new")) << "of somebody else";
  EXPECT_THAT(failure([&] { file.commit(); }, Failure::output), HasSubstr("another process"));
  EXPECT_EQ(read_file(at("new")), "of somebody else");
}

TEST_F(OutputTest, RefusesInvalidPaths) {
  EXPECT_THAT(failure([&] { check_output_path(folder_, true, "--to"); }, Failure::output), HasSubstr("is a folder"));
  EXPECT_THAT(failure([&] { check_output_path(folder_ + "/", true, "--to"); }, Failure::output),
              HasSubstr("names no file"));
  EXPECT_THAT(failure([&] { check_output_path(at("no/out"), true, "--to"); }, Failure::output), HasSubstr("mkdir -p"));
}

class ReferenceTest : public OutputTest {
 protected:
  void SetUp() override {
    OutputTest::SetUp();
    for (const char* step : {"step-20", "step-100"}) fs::create_directories(at("run/checkpoints/") + step);
    std::ofstream(at("run/checkpoints/best")) << "step-20\n";
  }
  MemberPath named(const std::string& text) const { return checkpoint_path(at(text), "RUN"); }
};

TEST_F(ReferenceTest, NamesACheckpoint) {
  EXPECT_EQ(named("run").path, at("run"));
  EXPECT_EQ(named("run@best").path, at("run/checkpoints/step-20"));
  EXPECT_EQ(named("run@step-100").path, at("run/checkpoints/step-100"));
  EXPECT_EQ(named("run/checkpoints@best").path, at("run/checkpoints/step-20"));
  EXPECT_EQ(named("run@best@member3").path, at("run/checkpoints/step-20"));
  EXPECT_EQ(named("run@best@member3").member, 3);
  EXPECT_EQ(named("run@member0").path, at("run"));
  EXPECT_EQ(named("run@home").path, at("run@home")) << "a folder may have an @ in its name";
  EXPECT_THAT(checkpoint_steps(at("run/checkpoints")), ElementsAre(20, 100));
}

TEST_F(ReferenceTest, RefusesAMissingCheckpoint) {
  const std::string step = failure([&] { named("run@step-7"); }, Failure::config);
  EXPECT_THAT(step, HasSubstr("no checkpoint of step 7"));
  EXPECT_THAT(step, HasSubstr("@step-20, "));
  fs::remove_all(at("run/checkpoints/step-20"));
  EXPECT_THAT(failure([&] { named("run@best"); }, Failure::config), HasSubstr("train.keep_best"))
      << "its folder is gone";
  EXPECT_THAT(failure([&] { named("none@best"); }, Failure::config), HasSubstr("it has no checkpoints"));
}

}  // namespace
}  // namespace convoy
