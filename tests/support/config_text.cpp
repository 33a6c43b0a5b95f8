#include "tests/support/config_text.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "core/base/describe.h"
#include "core/base/options.h"
#include "core/config/reader.h"

namespace convoy::testing {
namespace {

// Returns run.yaml in a folder of this process, written again for each reading.
class TemporaryFile {
 public:
  TemporaryFile() {
    char pattern[] = "/tmp/convoy-config-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  void write(const std::string& text) const {
    // Some file systems flush a file that is truncated and written again, which takes milliseconds.
    unlink(path().c_str());
    std::ofstream(path(), std::ios::binary) << text;
  }
  std::string path() const { return folder_ + "/run.yaml"; }
  std::string prefix() const { return folder_ + "/"; }

 private:
  std::string folder_;
};

const TemporaryFile& file_with(const std::string& text) {
  static const TemporaryFile file;
  file.write(text);
  return file;
}

RunConfig read(const std::string& path, const std::vector<std::string>& overrides) {
  return read_run_tree(read_yaml_file(path, overrides), small_catalogues());
}

}  // namespace

const char* const valid_config = R"(name: try
model: {name: net, width: 8, layers: [32, 16]}
data: {name: made, rows: 1000}
optimizer:
  name: adam
  lr: 1.0e-3
train: {epochs: 3, batch: {global: 256}}
strategy: {name: many, sync: {every: 2}}
)";

Catalogues small_catalogues() {
  using namespace describe;
  Catalogues all;
  all.kinds["model"] = {
      {"net",
       "a net",
       {integer("width", "units", 4).at_least(1), list("layers", "sizes", integer("", "units").at_least(1)),
        real("dropout", "share", 0).at_least(0).at_most(1), boolean("bias", "with bias", true),
        option(OptionType::bytes, "memory", "kept", "1 MiB"), option(OptionType::map, "extra", "free keys"),
        option(OptionType::any, "anything", "checked elsewhere")}},
      {"tower", "another", {integer("height", "floors").must().at_least(1)}}};
  all.kinds["model"][0].options[5].options = {real("", "a number")};
  all.kinds["data"] = {{"made", "made up", {integer("rows", "how many", 10).at_least(1).in("rows")}}};
  all.kinds["transform"] = {{"flip", "mirror", {real("share", "of rows", 0.5)}}};
  all.kinds["loss"] = {{"mse", "squares", {}}};
  all.kinds["schedule"] = {{"constant", "as it is", {}},
                           {"warmup", "rises", {option(OptionType::interval, "over", "how long", "100 steps")}}};
  Option schedule = component("schedule", "of the rate", "schedule");
  schedule.fallback = "constant";
  all.kinds["optimizer"] = {{"adam", "Adam", {real("lr", "rate").must().above(0), schedule}},
                            {"sgd", "plain", {real("lr", "rate").must().above(0), real("momentum", "kept", 0)}}};
  all.kinds["strategy"] = {{"one", "one rank", {}},
                           {"many",
                            "many ranks",
                            {section("sync", "when",
                                     {integer("every", "steps", 1).at_least(1),
                                      choice("what", "which", {"gradients", "parameters"}, "gradients")}),
                             real("bucket", "size", 25).in("MiB")}}};
  all.kinds["backend"] = {{"gloo", "sockets", {}}, {"local", "threads", {}}, {"mpi", "MPI", {}}};
  return all;
}

std::string config_with(const std::string& from, const std::string& to) {
  std::string text = valid_config;
  const size_t at = text.find(from);
  if (at == std::string::npos) {
    ADD_FAILURE() << "the valid configuration has no '" << from << "'";
    return text;
  }
  return text.replace(at, from.size(), to);
}

RunConfig read_config(const std::string& text, const std::vector<std::string>& overrides) {
  const TemporaryFile& file = file_with(text);
  return read(file.path(), overrides);
}

std::string config_error(const std::string& text, const std::vector<std::string>& overrides) {
  const TemporaryFile& file = file_with(text);
  try {
    read(file.path(), overrides);
  } catch (const Error& error) {
    std::string message = error.what();
    if (error.kind() != Failure::config) message = std::string(name_of(error.kind())) + " " + message;
    const size_t folder = message.find(file.prefix());
    return folder == std::string::npos ? message : message.erase(folder, file.prefix().size());
  }
  return "no error";
}

}  // namespace convoy::testing
