#include "core/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/checkpoint/restore.h"
#include "core/checkpoint/save_coordination.h"
#include "core/checkpoint/stored_files.h"
#include "core/files/files.h"
#include "core/files/run_files.h"
#include "core/tensors/safetensors.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

// Files and manifest entries that one rank wrote.
struct Written {
  std::string file;
  WrittenFile size;
  std::vector<StoredPiece> pieces;
};

std::string to_text(const Written& written, const Json& rank_state) {
  Json json{{"file", written.file}, {"bytes", written.size.bytes}, {"hash", written.size.hash}, {"own", rank_state}};
  json["pieces"] = Json::array();
  for (const StoredPiece& piece : written.pieces) json["pieces"].push_back(to_json(piece));
  return json.dump();
}

// Fails on a rank that cannot see a folder that rank 0 made or read.
void check_seen(const std::string& folder, const std::string& host, const char* what) {
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none))
    throw Error(Failure::io, folder, ", which rank 0 ", what, ", is not visible on host ", host,
                "; the output folder must be on storage that all hosts share");
}

// This rank's entries to save, by key.
std::vector<StateEntry> entries_to_save(Strategy& strategy, bool for_comparing) {
  std::vector<StateEntry> entries;
  const auto add = [&](const StateEntry& entry) {
    CONVOY_CHECK(!entry.stale || for_comparing, "state entry ", entry.key(), " is saved before it was flushed");
    if (entry.owner && !entry.stale) entries.push_back(entry);
  };
  strategy.visit_state(add);
  if (for_comparing) strategy.visit_gradients(add);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const StateEntry& a, const StateEntry& b) { return a.key() < b.key(); });
  return entries;
}

// A rank that owns no piece needs no folder. If replicas are equal, only one of them owns pieces.
Written write_pieces(const std::vector<StateEntry>& entries, const Context& context, const std::string& folder,
                     FileSystem& files) {
  Written written{convoy::str("rank-", context.rank, ".safetensors"), {}, {}};
  if (entries.empty()) {
    written.file.clear();
    return written;
  }
  check_seen(folder, context.host, "has just created");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, int> times;  // a rank may hold two pieces of one tensor
  for (const StateEntry& entry : entries) {
    const std::string fault = piece_error(entry.piece);
    CONVOY_CHECK(fault.empty() && entry.tensor.sizes() == tensor_shape(entry.piece), "state entry ", entry.key(), ": ",
                 fault.empty() ? "its tensor has another shape than its piece" : fault);
    const int before = times[entry.key()]++;
    const std::string stored = before == 0 ? entry.key() : convoy::str(entry.key(), "#", before);
    tensors.emplace_back(stored, entry.tensor);
    written.pieces.push_back({entry.key(), entry.name, name_of(entry.kind), entry.moment, entry.member, entry.replica,
                              entry.piece, dtype_text(entry.tensor.scalar_type()), written.file, stored});
  }
  // Python's tools look for "pt". Nothing else is added: equal states must give equal files.
  written.size = write_safetensors(folder + "/" + written.file, tensors, {{"format", "pt"}}, files);
  return written;
}

// Files of a save in the background, written no faster than `most_rate` until `awaited` is set. A quick disk takes
// memory bandwidth from the training: at 1.2 GB/s, a step that memory bandwidth limits took 1.2 times as long
// (docs/benchmarks.md). After `longest`, the rest is written as fast as possible, because ranks with less to write wait
// for this one, and have a time limit.
class PacedFiles : public FileSystem {
 public:
  PacedFiles(FileSystem& files, const std::atomic<bool>& awaited, std::chrono::milliseconds longest)
      : files_(files), awaited_(awaited), end_(Clock::now() + longest) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<File>(files_.create(path), *this);
  }
  void make_folder(const std::string& path) override { files_.make_folder(path); }
  void rename(const std::string& from, const std::string& to) override { files_.rename(from, to); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }
  void remove_all(const std::string& path) override { files_.remove_all(path); }

 private:
  using Clock = std::chrono::steady_clock;
  class File : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> file, const PacedFiles& pace) : file_(std::move(file)), pace_(pace) {}
    void write(const void* data, size_t bytes) override {
      file_->write(data, bytes);
      written_ += double(bytes);
      const std::chrono::duration<double> time(written_ / most_rate);
      const auto due = std::min(pace_.end_, begun_ + std::chrono::duration_cast<Clock::duration>(time));
      while (!pace_.awaited_ && Clock::now() < due)
        std::this_thread::sleep_until(std::min(due, Clock::now() + std::chrono::milliseconds(2)));
    }
    void close() override { file_->close(); }

   private:
    static constexpr double most_rate = 5e8;  // bytes a second
    std::unique_ptr<WritableFile> file_;
    const PacedFiles& pace_;
    const Clock::time_point begun_ = Clock::now();
    double written_ = 0;
  };
  FileSystem& files_;
  const std::atomic<bool>& awaited_;
  const Clock::time_point end_;
};

// Owners' pieces must cover every tensor. The save checks this, so that no later load has to fail.
void check_whole(const Manifest& manifest) {
  std::map<std::string, std::pair<int64_t, int64_t>> coverage;  // elements written, elements of the whole tensor
  for (const StoredPiece& piece : manifest.pieces) {
    auto& [elements, whole] = coverage[piece.key];
    elements += piece.piece.elements();
    whole = Piece::whole(piece.piece.global_shape).elements();
  }
  for (const auto& [key, sizes] : coverage) {
    CONVOY_CHECK(sizes.first == sizes.second, "the owners of ", key, " hold ", sizes.first, " of its ", sizes.second,
                 " elements");
  }
}

void write_manifest(const Manifest& manifest, const std::string& folder, FileSystem& files) {
  const std::string text = to_text(manifest);
  const auto file = files.create(folder + "/manifest.json");
  file->write(text.data(), text.size());
  file->close();
}

CheckpointInfo info_of(const std::string& path, Manifest manifest) {
  CheckpointInfo info{path, manifest.step, std::move(manifest.trainer), std::move(manifest.config)};
  if (manifest.data.is_null()) return info;
  info.fingerprint = manifest.data.value("fingerprint", std::string());
  info.data_rows = manifest.data.value("rows", int64_t(0));
  return info;
}

// A checkpoint may hold one copy of an entry per replica (local updates). Only a run with the same replicas loads these
// copies; other runs load the entries that all replicas have in common. Entries without a common value (a rank's
// compression error) keep the value that they have in a new run.
constexpr const char* per_replica = "own";

std::string replicas_used(const Manifest& manifest, const std::set<std::string>& wanted, const MomentChange& change,
                          const std::string& path) {
  std::set<std::string> stored;
  for (const StoredPiece& piece : manifest.pieces)
    if (piece.replica >= 0 && !change.ignores(piece.key)) stored.insert(piece.key);
  if (stored == wanted) return per_replica;
  if (!stored.empty())
    log::warning(str("checkpoint ", path, " has copies of ranks that trained locally (strategy.sync), and this run ",
                     wanted.empty() ? "has none" : "has other ranks",
                     ": all ranks start from the common state, the average"));
  return "";
}

// State of an option that may be turned on and off: loss scaling, early stopping, outer steps. A run that lacks the
// option ignores the state; a checkpoint that lacks the state resets the option's state.
bool is_optional(const std::string& kind, const std::string& name, const std::string& moment) {
  return (kind == name_of(StateKind::counter) && name != "updates") || moment.rfind("outer_", 0) == 0;
}

// Entries that all replicas have in common, without optional ones that this run does not want.
Manifest common_to(Manifest manifest, const std::set<std::string>& wanted, const MomentChange& change) {
  const auto left_out = [&](const StoredPiece& piece) {
    return piece.replica >= 0 || change.ignores(piece.key) ||
           (is_optional(piece.kind, piece.name, piece.moment) && wanted.count(piece.key) == 0);
  };
  auto& pieces = manifest.pieces;
  pieces.erase(std::remove_if(pieces.begin(), pieces.end(), left_out), pieces.end());
  return manifest;
}

// Entries to fill; those of a replica are filled from the pieces that all replicas have in common.
std::vector<StateEntry> from_common(const std::vector<StateEntry>& wanted, const Manifest& manifest) {
  const std::set<std::string> stored = keys_of(manifest);
  std::vector<StateEntry> entries;
  for (StateEntry entry : wanted) {
    const bool replicated = entry.replica >= 0;
    entry.replica = -1;
    if (!replicated || stored.count(entry.key()) != 0) entries.push_back(std::move(entry));
  }
  return entries;
}

// The model was made for the numbering of ids, classes and columns in `data`; the checkpoint must have the same.
void check_numbers(const Manifest& manifest, const DataContents& data, const std::string& path) {
  const std::optional<DataContents> stored = stored_contents(manifest, path);
  if (!stored || data.fingerprint.empty()) return;
  const DataChange change = data_change(*stored, data);
  if (change.renumber || !change.unknown.empty())
    throw Error(Failure::config, "data: the ids, classes or columns of this run have other numbers than in ", path,
                ": ", change.text(), "; start afresh with --set train.resume=never");
}

Manifest manifest_of(const CheckpointInfo& info) {
  if (!info.members.empty()) return joined(info.members);
  Manifest manifest = read_manifest_file(info.path);
  return info.member < 0 ? manifest : of_member(std::move(manifest), info.member, info.path);
}

// The newest complete and intact checkpoint of a checkpoints folder.
std::optional<CheckpointInfo> newest_in(const std::string& folder, FileSystem& files, bool to_train = false) {
  const CheckpointDirectory directory(folder, files);
  std::vector<int64_t> steps = directory.steps();
  std::reverse(steps.begin(), steps.end());
  std::optional<Error> newest;  // why it cannot be read
  for (int64_t step : steps) {
    const std::string path = directory.step_path(step);
    try {
      Manifest manifest = read_manifest_file(path);
      check_files(path, manifest);
      if (to_train && manifest.trainer.empty())
        throw Error(Failure::corrupt_data, path, "/manifest.json: 'trainer' is empty, so no step can follow");
      return info_of(path, std::move(manifest));
    } catch (const Error& error) {
      log::warning(convoy::str("checkpoint ", path, " is skipped; trying the one before it: ", error.what()));
      if (!newest) newest = error;
    }
  }
  // A new start would overwrite checkpoints that may still be repaired.
  if (newest)
    throw Error(newest->kind(), "none of the ", steps.size(), " checkpoints in ", folder,
                " is complete; the newest: ", newest->what(), "; to start again, give another --output, or remove ",
                folder);
  return std::nullopt;
}

}  // namespace

Checkpoints::Checkpoints(const Context& context, std::string folder, int64_t keep_last, FileSystem& files)
    : context_(context), directory_(std::move(folder), files), keep_last_(keep_last), files_(files) {}

struct Checkpoints::Save {
  SaveRequest request;
  SaveCoordination coordination;
  std::vector<StateEntry> entries;
  std::string lane = "";                       // lane of its thread in the trace
  const std::atomic<bool>* awaited = nullptr;  // in the background: the rank's thread waits for its end

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const StateEntry& entry : entries) bytes += static_cast<int64_t>(entry.tensor.nbytes());
    return bytes;
  }
  int64_t bytes_to_copy() const {
    int64_t bytes = 0;
    for (const StateEntry& entry : entries)
      if (!entry.copy.defined()) bytes += static_cast<int64_t>(entry.tensor.nbytes());
    return bytes;
  }
};

struct Checkpoints::Background {
  std::atomic<bool> awaited{false}, cancelled{false}, ended{false};
  std::exception_ptr failure;  // valid after `ended`
  std::thread thread;
  std::chrono::duration<double> grace{0};  // time for which the destructor waits
  // Runs also when an exception ends the training. The save may still complete, because the other ranks' threads
  // continue.
  ~Background() {
    if (!thread.joinable()) return;
    awaited = true;
    const auto end = std::chrono::steady_clock::now() + grace;
    while (!ended && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    cancelled = true;
    thread.join();
  }
};

Checkpoints::~Checkpoints() = default;

void Checkpoints::finish(Save& save) {
  const SaveRequest& request = save.request;
  SaveCoordination& coordination = save.coordination;
  const std::string folder = directory_.temporary_path(request.step, coordination.token());
  TraceLog& trace = context_.times->log();
  const TraceLog::Open whole(trace, save.lane, str("save after step ", request.step), "checkpoint");
  try {
    coordination.on_first("open", [&] {
      directory_.remove_leftovers();
      directory_.open_temporary(request.step, coordination.token());
      return std::string();
    });
    Written mine;
    coordination.on_all("write", [&] {
      const TraceLog::Open slice(trace, save.lane, "write", "checkpoint", save.bytes());
      if (save.awaited == nullptr) {
        mine = write_pieces(save.entries, context_, folder, files_);
      } else {
        PacedFiles paced(files_, *save.awaited, timeout_of(context_.config.launch.collective) / 4);
        mine = write_pieces(save.entries, context_, folder, paced);
      }
    });
    const std::vector<std::string> texts = coordination.to_first("list", to_text(mine, request.rank_state));
    coordination.on_first("publish", [&] {
      const TraceLog::Open slice(trace, save.lane, "publish", "checkpoint");
      Manifest manifest{request.step, request.trainer, context_.config.resolved, {}, {}};
      for (size_t rank = 0; rank < texts.size(); ++rank) {
        const Json json = Json::parse(texts[rank]);
        if (!json.at("own").is_null()) manifest.trainer["ranks"][std::to_string(rank)] = json.at("own");
        const std::string file = json.at("file");
        if (file.empty()) continue;
        manifest.files[file] = {json.at("bytes"), json.at("hash")};
        for (const Json& piece : json.at("pieces")) manifest.pieces.push_back(stored_piece_from_json(piece));
      }
      check_whole(manifest);
      if (request.data != nullptr) {
        store_contents(request.data->contents(), folder, manifest, files_);
        manifest.schema = to_json(request.data->schema());
      }
      write_manifest(manifest, folder, files_);
      directory_.publish(request.step, coordination.token());
      if (request.best) directory_.mark_best(request.step, coordination.token());
      return std::string();
    });
  } catch (...) {
    if (coordination.first()) directory_.remove_leftovers();
    throw;
  }
  if (coordination.first()) directory_.prune(keep_last_, request.step);
}

void Checkpoints::save(Strategy& strategy, const SaveRequest& request, bool for_comparing) {
  wait_for_background();
  at::NoGradGuard no_grad;
  SaveCoordination coordination(context_, "save");
  Save save{request, coordination, entries_to_save(strategy, for_comparing)};
  finish(save);
}

void Checkpoints::save_in_background(Strategy& strategy, const SaveRequest& request, int64_t most_bytes) {
  wait_for_background();
  at::NoGradGuard no_grad;
  const auto save =
      std::make_shared<Save>(Save{request, SaveCoordination(context_, "save"), entries_to_save(strategy, false)});
  if (save->bytes_to_copy() > most_bytes) {
    copies_.clear();
    return finish(*save);
  }
  if (!copy(save->entries)) {
    copies_.clear();
    return finish(*save);
  }
  auto background = std::make_unique<Background>();
  background->grace = std::chrono::duration<double>(context_.config.launch.failure_grace);
  save->coordination.continue_in_background(background->cancelled);
  save->lane = "checkpoint";
  save->awaited = &background->awaited;
  const auto work = [this, save, running = background.get()]() noexcept {
    pthread_setname_np(pthread_self(), "checkpoint");
    at::NoGradGuard none;
    try {
      finish(*save);
    } catch (...) {
      running->failure = std::current_exception();
    }
    running->ended = true;
  };
  try {
    background->thread = std::thread(work);
  } catch (const std::system_error&) {  // a limit of threads
    save->lane.clear();
    save->awaited = nullptr;
    return finish(*save);
  }
  background_ = std::move(background);
}

// Sets the entries' tensors to copies in host memory. Returns false, with a warning, if there is no memory for all.
bool Checkpoints::copy(std::vector<StateEntry>& entries) try {
  copies_.resize(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const at::Tensor& from = entries[i].tensor;
    at::Tensor& to = copies_[i];
    if (entries[i].copy.defined()) {
      to = at::Tensor();
      entries[i].tensor = entries[i].copy;
      continue;
    }
    if (!to.defined() || to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type())
      to = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(from.is_cuda()));
    to.copy_(from);
    entries[i].tensor = to;
  }
  return true;
} catch (...) {
  const std::string problem = out_of_memory_text();
  if (problem.empty()) throw;
  log::warning(convoy::str("rank ", context_.rank,
                           ": no memory for the copy of a checkpoint, so training waits until it ",
                           "is written (train.checkpoint_async: false never copies): ", problem));
  return false;
}

void Checkpoints::check_background() {
  if (background_ && background_->ended) wait_for_background();
}

void Checkpoints::wait_for_background() {
  if (!background_) return;
  const std::unique_ptr<Background> ended = std::move(background_);
  ended->awaited = true;
  ended->thread.join();
  if (ended->failure) std::rethrow_exception(ended->failure);
}

std::optional<CheckpointInfo> Checkpoints::newest(bool to_train) {
  SaveCoordination coordination(context_, "newest");
  const std::string path = coordination.on_first("choose", [&] {
    directory_.remove_leftovers();
    const auto info = newest_in(directory_.folder(), files_, to_train);
    return info ? info->path : std::string();
  });
  if (path.empty()) return std::nullopt;
  std::optional<CheckpointInfo> info;
  coordination.on_all("read", [&] {
    check_seen(path, context_.host, "resumes from");
    info = read_manifest(path);
  });
  return info;
}

// The newest checkpoint of each pipeline, as a JSON list of step-N folders.
Json Checkpoints::newest_of(const std::vector<std::string>& pipelines) {
  Json folders = Json::array();
  for (const std::string& pipeline : pipelines) {
    const auto info = newest_in(pipeline + "/checkpoints", files_);
    if (!info)
      throw Error(Failure::config, "train.resume: ", pipeline,
                  " of that farm holds no complete checkpoint; "
                  "the same command as before finishes what is left of it");
    folders.push_back(info->path);
  }
  return folders;
}

CheckpointInfo Checkpoints::find(const std::string& given) {
  const auto [path, member] = checkpoint_path(given, "train.resume");
  SaveCoordination coordination(context_, "find");
  const std::string chosen = coordination.on_first("choose", [&, path = path]() -> std::string {
    if (const std::vector<std::string> pipelines = pipeline_folders(path); !pipelines.empty())
      return newest_of(pipelines).dump();
    return intact_checkpoint(path, "train.resume", files_);
  });
  CheckpointInfo info;
  coordination.on_all("read", [&, member = member] {
    if (const Json list = Json::parse(chosen, nullptr, false); list.is_array()) {
      const auto folders = list.get<std::vector<std::string>>();
      for (const std::string& folder : folders) check_seen(folder, context_.host, "resumes from");
      info = info_of(folders.front(), joined(folders));
      info.members = folders;
      return;
    }
    check_seen(chosen, context_.host, "resumes from");
    info = member < 0 ? read_manifest(chosen) : info_of(chosen, of_member(read_manifest_file(chosen), member, chosen));
    info.member = member;
  });
  return info;
}

void Checkpoints::load(Strategy& strategy, const CheckpointInfo& info, const Dataset* data) {
  at::NoGradGuard no_grad;
  SaveCoordination coordination(context_, "load");
  std::set<std::string> stored;
  coordination.on_all("read", [&] { stored = keys_of(manifest_of(info)); });
  std::vector<StateEntry> wanted;
  strategy.visit_state([&](const StateEntry& entry) {
    const bool counter = is_optional(name_of(entry.kind), entry.name, "");
    if (counter && entry.replica < 0 && stored.count(entry.key()) == 0) return;  // starts again
    // A member's checkpoint lacks state that members share, such as the step of each best metric: this state starts
    // again.
    const bool shared = !info.members.empty() && entry.member < 0;
    if (!shared) wanted.push_back(entry);
  });
  Json keys = Json::array(), replica_keys = Json::array();
  for (const StateEntry& entry : wanted) (entry.replica < 0 ? keys : replica_keys).push_back(entry.key());
  const std::vector<std::string> all = coordination.to_first("keys", Json::array({keys, replica_keys}).dump());
  const std::string used = coordination.on_first("names", [&] {
    std::set<std::string> known, replicas;
    for (const std::string& text : all) {
      const Json lists = Json::parse(text);
      for (const Json& key : lists[0]) known.insert(key.get<std::string>());
      for (const Json& key : lists[1]) replicas.insert(key.get<std::string>());
    }
    const MomentChange change = moment_change(stored, {&known, &replicas});
    change.erase_from(known);
    change.erase_from(replicas);
    const Manifest manifest = manifest_of(info);
    if (data != nullptr) check_numbers(manifest, data->contents(), info.path);
    check_names(common_to(manifest, known, change), known, info.path);
    for (const std::string& note : change.notes(info.path)) log::info(note);
    return Json{{"replicas", replicas_used(manifest, replicas, change, info.path)}, {"missing", change.missing}}.dump();
  });
  coordination.on_all("fill", [&] {
    const Manifest manifest = manifest_of(info);
    const Json agreed = Json::parse(used);
    const MomentChange change{agreed.at("missing").get<std::set<std::string>>(), {}};
    wanted.erase(std::remove_if(wanted.begin(), wanted.end(),
                                [&](const StateEntry& entry) { return change.resets(entry.key()); }),
                 wanted.end());
    const bool use_replicas = agreed.at("replicas") == per_replica;
    restore(use_replicas ? wanted : from_common(wanted, manifest), manifest, info.path);
  });
}

bool Checkpoints::owns(const CheckpointInfo& info) const {
  std::error_code none;
  return info.member < 0 && info.members.empty() &&
         std::filesystem::equivalent(std::filesystem::path(info.path).parent_path(), directory_.folder(), none);
}

CheckpointInfo read_manifest(const std::string& step_folder) {
  return info_of(step_folder, read_manifest_file(step_folder));
}

namespace {

void refuse_farm(const std::string& path, const std::string& key) {
  if (const std::vector<std::string> pipelines = pipeline_folders(path); !pipelines.empty())
    throw Error(Failure::config, key, ": ", path,
                " is the folder of a farm; name one of its runs: ", join(pipelines, ", "));
}

[[noreturn]] void refuse_without_checkpoint(const std::string& path, const std::string& key) {
  throw Error(Failure::config, key, ": ", path,
              " holds no complete checkpoint; give a run folder, or one of its "
              "checkpoints/step-N folders");
}

bool is_step_folder(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(path + "/manifest.json", none);
}

void check_named(const std::string& step, const std::string& key) {
  try {
    check_files(step, read_manifest_file(step));
  } catch (const Error& error) {
    if (error.kind() != Failure::corrupt_data) throw;
    throw Error(error.kind(), key, ": ", error.what(), advice_for_damage(step));
  }
}

}  // namespace

std::string intact_checkpoint(const std::string& path, const std::string& key, FileSystem& files) {
  refuse_farm(path, key);
  if (is_step_folder(path)) {
    check_named(path, key);
    return path;
  }
  for (const std::string& folder : {path + "/checkpoints", path}) {
    if (const auto info = newest_in(folder, files)) return info->path;
  }
  refuse_without_checkpoint(path, key);
}

std::string named_checkpoint(const std::string& path, const std::string& key) {
  refuse_farm(path, key);
  std::string step = path;
  if (!is_step_folder(path)) {
    const std::string folder = checkpoints_folder(path);
    const std::vector<int64_t> steps = folder.empty() ? std::vector<int64_t>() : checkpoint_steps(folder);
    if (steps.empty()) refuse_without_checkpoint(path, key);
    step = convoy::str(folder, "/step-", steps.back());
  }
  check_named(step, key);
  return step;
}

}  // namespace convoy
