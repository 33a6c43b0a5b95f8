// Use: the work of a command on a trained run, on each rank: `convoy evaluate`, `predict`, `recommend`, `generate`.
//
// `convoy` finds the checkpoint, checks the command line, and starts the ranks like those of `convoy run`. Instead of
// training, each rank makes the Use of its command and calls `run` once.
// A new command: one class here, one line in make_use (use.cpp), one section in launch/cli/use_commands.cpp.
// Threads: the thread of the rank. Collectives of `run` must be equal on all ranks.
// Errors: Error and ConfigError with their kinds (docs/errors.md); they end all ranks, and `convoy` prints the message.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/components.h"
#include "api/loaded_model.h"
#include "core/base/json.h"
#include "core/context.h"
#include "core/data/contents.h"
#include "core/files/output_file.h"
#include "core/inject/injector.h"
#include "core/registry.h"

namespace convoy {

// Arguments of a Use. They outlive `run`.
class UseContext {
 public:
  UseContext(const Context& context, const Json& request, const Registry& registry, const Components& components,
             const std::shared_ptr<Injector>& injector);
  ~UseContext();
  UseContext(const UseContext&) = delete;
  UseContext& operator=(const UseContext&) = delete;

  // Rank, size, world, devices, threads, and the configuration: that of the checkpoint with the --set of the command.
  const Context& rank() const { return context_; }
  const RunConfig& config() const { return context_.config; }
  // Options of the command: UseArguments::options of launch/cli/use.h, `to` and `force`.
  const Json& options() const { return options_; }
  const Registry& registry() const { return registry_; }

  // The checkpoint: its path, step, configuration at the save, and the member of an ensemble that the user named.
  const CheckpointInfo& checkpoint() const { return checkpoint_; }
  // Names and preparation that the checkpoint stores of its data; nullopt: the data set stores none.
  const std::optional<DataContents>& contents() const { return contents_; }
  // Fields of the rows in training.
  const Schema& schema();

  // The trained model, whole on this rank, in evaluation mode; every member of an ensemble, in order. Read from the
  // checkpoint at the first call.
  const std::vector<LoadedModel>& models();

  // Components of the run. The data set has the checkpoint's numbers for ids and classes. All are null for a command
  // that does not read the data set (UseArguments::reads_data).
  const Components& components() const { return components_; }

  // Reports progress to the supervisor, such as "1200 of 6040 users"; the user sees some of the texts. Call it at least
  // once in some seconds. CommError(peer_lost) if the job has ended.
  void progress(const std::string& text);
  // `total` 0: unknown.
  void progress(int64_t done, int64_t total, const char* unit);

  // Writes to `--to`, which replaces an existing file only under --force. Rank 0 writes.
  std::unique_ptr<OutputFile> output() const;
  FileSystem& files() const { return files_; }

  Injector& injector() const { return *injector_; }

 private:
  const Context& context_;
  const Json options_;
  const Registry& registry_;
  const Components& components_;
  const std::shared_ptr<Injector> injector_;
  FileSystem& files_;
  CheckpointInfo checkpoint_;
  std::optional<DataContents> contents_;
  std::optional<Schema> schema_;
  std::vector<LoadedModel> models_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  bool reported_ = false;
  std::chrono::steady_clock::time_point posted_;
};

class Use {
 public:
  virtual ~Use() = default;
  // Returns the result, which `convoy` prints. Only that of rank 0 is used.
  virtual Json run(UseContext& use) = 0;
};

// `command`: evaluate, …
std::unique_ptr<Use> make_use(const std::string& command);

}  // namespace convoy
