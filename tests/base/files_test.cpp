// Files of a run survive these: planted links, FIFOs and folders in their place, and folders that others may write.
#include "core/files/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FilesTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return temporary_ / name; }
  static void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string failure(const std::function<void()>& act, Failure kind = Failure::io) {
    return message_of(act, kind);
  }
  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(FilesTest, ReplacesAFileWithoutTemporaries) {
  write_whole(at("a"), "old", false);
  write_whole(at("a"), "new", true);
  EXPECT_EQ(read_file(at("a")), "new");
  EXPECT_THAT(names_in(folder_), ElementsAre("a"));
}

// Direct writes take whole blocks of 1 MiB. A file system in memory may refuse them.
TEST_F(FilesTest, UncachedFilesHaveAllBytes) {
  std::vector<std::string> folders{at("files")};
  fs::create_directory(folders.front());
  if (fs::is_directory("/dev/shm")) folders.push_back("/dev/shm");
  for (const std::string& folder : folders) {
    for (const size_t size : {size_t{0}, size_t{5}, size_t{1} << 20, (size_t{1} << 20) + 5, (size_t{7} << 19) + 4096}) {
      std::string bytes(size, '\0');
      for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
      const std::string path = folder + "/convoy-uncached-" + random_token();
      const auto file = uncached_files().create(path);
      for (size_t from = 0; from < size; from += 300'001)
        file->write(bytes.data() + from, std::min<size_t>(300'001, size - from));
      file->close();
      EXPECT_TRUE(read_file(path) == bytes) << path << ": " << size;
      fs::remove(path);
    }
  }
}

TEST_F(FilesTest, LeavesNothingOfAnUnfinishedFile) {
  if (!Descriptor(open(folder_.c_str(), O_WRONLY | O_TMPFILE, 0644)).valid())
    GTEST_SKIP() << "this file system has no files without a name";
  system_files().create(at("unfinished"))->write("half", 4);
  EXPECT_THAT(names_in(folder_), ElementsAre());
}

TEST_F(FilesTest, DoesNotFollowAPlantedTemporary) {
  write(at("victim"), "untouched");
  ASSERT_EQ(symlink(at("victim").c_str(), at(str(".summary.json.", getpid())).c_str()), 0);
  write_whole(at("summary.json"), "{}", false);
  EXPECT_EQ(read_file(at("victim")), "untouched");
  EXPECT_EQ(read_file(at("summary.json")), "{}");
}

TEST_F(FilesTest, RefusesALinkInPlaceOfAFile) {
  write(at("victim"), "untouched");
  ASSERT_EQ(symlink(at("victim").c_str(), at("link").c_str()), 0);
  ASSERT_EQ(link(at("victim").c_str(), at("second").c_str()), 0);
  EXPECT_THAT(failure([&] { open_to_append(at("link")); }), HasSubstr("is a symbolic link"));
  EXPECT_THAT(failure([&] { open_to_append(at("second")); }), HasSubstr("hard link"));
  EXPECT_THAT(failure([&] { write_whole(at("link"), "x", false); }), HasSubstr("is a symbolic link"));
  EXPECT_NE(failure([&] { system_files().create(at("link"))->close(); }), "");
  EXPECT_EQ(read_file(at("victim")), "untouched");
}

TEST_F(FilesTest, DoesNotBlockOnAFifo) {
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_THAT(failure([&] { open_to_read(at("fifo")); }), HasSubstr("is a FIFO"));
  EXPECT_THAT(failure([&] { open_to_append(at("fifo")); }), HasSubstr("is a FIFO"));
  EXPECT_EQ(read_file_if_any(at("fifo")), "");
  EXPECT_EQ(irregular(at("fifo")), "is a FIFO");
}

TEST_F(FilesTest, RefusesAFolderInPlaceOfAFile) {
  ASSERT_EQ(mkdir(at("summary.json").c_str(), 0700), 0);
  EXPECT_THAT(failure([&] { read_file(at("summary.json")); }), HasSubstr("is a folder"));
  EXPECT_THAT(failure([&] { write_whole(at("summary.json"), "{}", false); }), HasSubstr("is a folder"));
  EXPECT_THAT(failure([&] { open_to_append(at("summary.json")); }), HasSubstr("directory"));
  EXPECT_THAT(names_in(folder_), ElementsAre("summary.json"));
}

TEST_F(FilesTest, CreatesFilesWritableByTheOwnerOnly) {
  const mode_t before = umask(0);
  make_private_folder(at("run"));
  write_whole(at("run/a"), "", false);
  open_to_append(at("run/b"));
  umask(before);
  for (const char* name : {"run", "run/a", "run/b"}) {
    struct stat status {};
    ASSERT_EQ(stat(at(name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & (S_IWGRP | S_IWOTH), 0u) << name;
  }
}

TEST_F(FilesTest, RefusesAFolderWritableByOthers) {
  make_private_folder(at("run"));
  refuse_writable_by_others(at("run"));
  ASSERT_EQ(chmod(at("run").c_str(), 0777), 0);
  EXPECT_THAT(failure([&] { refuse_writable_by_others(at("run")); }, Failure::refused), HasSubstr("chmod go-w"));
  ASSERT_EQ(chmod(at("run").c_str(), 01777), 0);
  EXPECT_NE(failure([&] { refuse_writable_by_others(at("run")); }, Failure::refused), "");
}

TEST_F(FilesTest, RefusesAWorldWritableParent) {
  if (!others_reach_folders()) GTEST_SKIP() << "only the owner may enter / here";
  make_private_folder(at("parent/run"));
  const std::string parent = at("parent");
  ASSERT_EQ(chmod(parent.c_str(), 0777), 0);
  EXPECT_EQ(refuse_writable_by_others(at("parent/run")), "") << "no other user reaches it";
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  make_private_folder(at("parent/between/run"));
  for (const char* path : {"parent/between/run", "parent/not/yet/there"})
    EXPECT_THAT(failure([&] { refuse_writable_by_others(at(path)); }, Failure::refused),
                HasSubstr("chmod o-w " + parent + ","));
  for (const char* path : {"parent/run", "parent/run/"})
    EXPECT_THAT(failure([&] { refuse_writable_by_others(at(path)); }, Failure::refused),
                HasSubstr("chmod o-w " + parent + ","));
  ASSERT_EQ(symlink((parent + "/run").c_str(), at("link").c_str()), 0);
  EXPECT_NE(failure([&] { refuse_writable_by_others(at("link")); }, Failure::refused), "");
  ASSERT_EQ(chmod(parent.c_str(), 01777), 0);
  refuse_writable_by_others(parent + "/run");
  EXPECT_NE(failure([&] { refuse_link(at("link")); }, Failure::refused), "");
  refuse_link(parent);
  refuse_link(at("nowhere"));
}

TEST_F(FilesTest, WarnsOfAWorldWritableMount) {
  if (!others_reach_folders()) GTEST_SKIP() << "only the owner may enter / here";
  const std::string volume = at("volume");
  make_private_folder(volume);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  if (mount("none", volume.c_str(), "tmpfs", 0, "mode=0777") != 0) GTEST_SKIP() << "nothing may be mounted here";
  make_private_folder(at("volume/run"));
  const std::string warning = refuse_writable_by_others(at("volume/run"));
  umount(volume.c_str());
  EXPECT_THAT(warning, HasSubstr("every user may write " + volume));
}

TEST_F(FilesTest, AcceptsFoldersWritableByAPrivateGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files to other groups";
  make_private_folder(at("run"));
  ASSERT_EQ(chmod(at("run").c_str(), 0775), 0);
  refuse_writable_by_others(at("run"));  // root's own group
  ASSERT_EQ(chown(at("run").c_str(), 0, 1), 0);
  ASSERT_EQ(chmod(at("run").c_str(), 0775), 0);
  EXPECT_THAT(failure([&] { refuse_writable_by_others(at("run")); }, Failure::refused), HasSubstr("group 1"));
  ASSERT_EQ(chown(at("run").c_str(), 1, 0), 0);
  ASSERT_EQ(chmod(at("run").c_str(), 0755), 0);
  EXPECT_THAT(failure([&] { refuse_writable_by_others(at("run")); }, Failure::refused), HasSubstr("belongs to user 1"));
}

TEST(ParsedJson, DiscardsWhatIsMalformedOrTooDeep) {
  const auto nested = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_TRUE(parsed_json("{").is_discarded());
  EXPECT_FALSE(parsed_json(nested(100)).is_discarded());
  EXPECT_TRUE(parsed_json(nested(101)).is_discarded());
  EXPECT_TRUE(parsed_json("{\"a\": " + nested(200000) + "}").is_discarded());
  const std::string brackets = R"({"a": ")" + std::string(200, '[') + R"(\"[", "b": [1, {}, []]})";
  EXPECT_EQ(parsed_json(brackets)["b"].size(), 3u) << "brackets in a string do not count";
}

TEST(ValueOfKey, IsNullWithoutTheKey) {
  const Json json = {{"train", {{"batch", {{"global", 64}}}, {"epochs", nullptr}}}};
  EXPECT_EQ(value_of_key(json, "train.batch.global"), 64);
  EXPECT_EQ(value_of_key(json, "train.batch"), json["train"]["batch"]);
  for (const char* key : {"train.epochs", "train.batch.per_rank", "train.batch.global.more", "data", ""})
    EXPECT_TRUE(value_of_key(json, key).is_null()) << key;
  EXPECT_TRUE(value_of_key(Json(), "train").is_null());
}

}  // namespace
}  // namespace convoy
