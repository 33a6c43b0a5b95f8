// Libraries that are refused before any of their code runs, with the reason.
#include "core/plugin.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/registry.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Plugins : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              str("convoy-plugin-", getpid(), "-", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    chmod(folder_.c_str(), 0755);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A library from a few lines of C++ without any header.
  std::string build(const std::string& code) {
    const auto source = (folder_ / "p.cpp").string();
    // Use a unique name, because a loaded library is not read again.
    const auto library = (folder_ / str("lib", ++built_, ".so")).string();
    std::ofstream(source) << code;
    const std::string command = str("c++ -shared -fPIC -o '", library, "' '", source, "'");
    EXPECT_EQ(std::system(command.c_str()), 0);
    chmod(library.c_str(), 0755);
    return library;
  }
  static Failure refusal(const std::string& path, std::string& message) {
    Registry registry;
    try {
      load_plugin(path, registry);
    } catch (const Error& error) {
      message = error.what();
      return error.kind();
    }
    message = "loaded";
    return Failure::internal;
  }

  fs::path folder_;
  std::string message_;
  int built_ = 0;
};

const std::string fitting = str("extern \"C\" const char* convoy_plugin_version() { return \"", CONVOY_PLUGIN_BUILD,
                                "\"; }\nextern \"C\" void convoy_plugin_register(void*) {}\n");

TEST_F(Plugins, LoadAMatchingPlugin) {
  Registry registry;
  const auto path = build(fitting);
  load_plugin(path, registry);
  EXPECT_EQ(registry.plugins, std::vector<std::string>{path});
  EXPECT_THROW(load_plugin(path, registry), Error);  // named twice
}

TEST_F(Plugins, RefuseRelativeAndMissingPaths) {
  EXPECT_EQ(refusal("libp.so", message_), Failure::config);
  EXPECT_THAT(message_, HasSubstr("absolute"));
  EXPECT_EQ(refusal((folder_ / "none.so").string(), message_), Failure::config);
  EXPECT_THAT(message_, HasSubstr("No such file"));
  EXPECT_EQ(refusal(folder_.string(), message_), Failure::config);
  EXPECT_THAT(message_, HasSubstr("is no file"));
}

TEST_F(Plugins, RefuseAFileWritableByOthers) {
  const auto path = build(fitting);
  for (mode_t mode : {0775, 0757}) {
    chmod(path.c_str(), mode);
    EXPECT_EQ(refusal(path, message_), Failure::refused);
    EXPECT_THAT(message_, HasSubstr("chmod go-w"));
  }
  chmod(path.c_str(), 0755);
  chmod(folder_.c_str(), 0777);
  EXPECT_EQ(refusal(path, message_), Failure::refused);
  chmod(folder_.c_str(), 01777);  // sticky: no other user can replace the file
  EXPECT_EQ(refusal(path, message_), Failure::internal) << message_;
}

TEST_F(Plugins, RefuseAnAncestorWritableByOthers) {
  const auto path = build(fitting);
  const auto up = folder_ / "up";
  fs::create_directories(up / "mine");
  chmod((up / "mine").c_str(), 0755);
  const auto inside = (up / "mine" / "libp.so").string();
  fs::rename(path, inside);
  chmod(up.c_str(), 0777);
  EXPECT_EQ(refusal(inside, message_), Failure::refused);
  EXPECT_THAT(message_, HasSubstr(str("chmod go-w ", up.string())));
  chmod(up.c_str(), 01777);  // others may not rename what is mine
  EXPECT_EQ(refusal(inside, message_), Failure::internal) << message_;
}

TEST_F(Plugins, CheckTheTargetOfALink) {
  const auto path = build(fitting);
  const auto open_folder = folder_ / "open";
  fs::create_directories(open_folder);
  fs::rename(path, open_folder / "libp.so");
  chmod(open_folder.c_str(), 0777);
  fs::create_symlink(open_folder / "libp.so", path);
  EXPECT_EQ(refusal(path, message_), Failure::refused);
}

TEST_F(Plugins, RefuseAFileOfADifferentUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const auto path = build(fitting);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(refusal(path, message_), Failure::refused);
  EXPECT_THAT(message_, HasSubstr("12345"));
}

TEST_F(Plugins, NameOtherVersionsAndLibraries) {
  EXPECT_EQ(refusal(build("extern \"C\" const char* convoy_plugin_version() { return \"convoy-0\"; }\n"
                          "extern \"C\" void convoy_plugin_register(void*) { __builtin_trap(); }\n"),
                    message_),
            Failure::config);
  EXPECT_THAT(message_, HasSubstr("built for convoy-0"));
  EXPECT_EQ(refusal(build("extern \"C\" const char* convoy_plugin_version() { return \"convoy\\n0\\033[2J\"; }\n"
                          "extern \"C\" void convoy_plugin_register(void*) { __builtin_trap(); }\n"),
                    message_),
            Failure::config);
  EXPECT_THAT(message_, HasSubstr("built for convoy\\x0a0\\x1b[2J, and"));
  EXPECT_EQ(refusal(build("extern \"C\" const char* convoy_plugin_version() { return nullptr; }\n"
                          "extern \"C\" void convoy_plugin_register(void*) { __builtin_trap(); }\n"),
                    message_),
            Failure::config);
  EXPECT_THAT(message_, HasSubstr("its convoy_plugin_version returns null"));
}

TEST_F(Plugins, NameADifferentLibTorch) {
  EXPECT_EQ(refusal(build(str("extern \"C\" const char* convoy_plugin_version() { return \"", CONVOY_PLUGIN_VERSION,
                              ", LibTorch 1.0.0\"; }\n",
                              "extern \"C\" void convoy_plugin_register(void*) { __builtin_trap(); }\n")),
                    message_),
            Failure::config);
  EXPECT_THAT(message_, HasSubstr(str("built for ", CONVOY_PLUGIN_VERSION, ", LibTorch 1.0.0, but this is")));
  EXPECT_THAT(message_, HasSubstr("LibTorch " TORCH_VERSION));
}

TEST_F(Plugins, RefuseALibraryThatIsNoPlugin) {
  EXPECT_EQ(refusal(build("int nothing = 0;\n"), message_), Failure::config);
  EXPECT_THAT(message_, HasSubstr("CONVOY_PLUGIN(registry)"));
}

TEST_F(Plugins, RefuseATextFile) {
  const auto path = (folder_ / "text.so").string();
  std::ofstream(path) << "hello";
  chmod(path.c_str(), 0644);
  EXPECT_EQ(refusal(path, message_), Failure::config);
  EXPECT_THAT(message_, HasSubstr("cannot be loaded"));
}

}  // namespace
}  // namespace convoy
