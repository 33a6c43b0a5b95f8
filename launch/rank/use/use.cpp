#include "launch/rank/use/use.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/checkpoint/stored_files.h"
#include "core/control/channel.h"
#include "core/files/run_files.h"

namespace convoy {

std::unique_ptr<Use> make_evaluate_use();
std::unique_ptr<Use> make_generate_use();
std::unique_ptr<Use> make_predict_use();
std::unique_ptr<Use> make_recommend_use();

namespace {

struct UseEntry {
  const char* command;
  std::unique_ptr<Use> (*make)();
};

constexpr UseEntry uses[] = {
    {"evaluate", make_evaluate_use},
    {"generate", make_generate_use},
    {"predict", make_predict_use},
    {"recommend", make_recommend_use},
};

const UseEntry& entry_of(const std::string& command) {
  const auto found =
      std::find_if(std::begin(uses), std::end(uses), [&](const UseEntry& entry) { return command == entry.command; });
  CONVOY_CHECK(found != std::end(uses), "no rank-side class for the command '", command, "'");
  return *found;
}

// Collective.
CheckpointInfo find_checkpoint(const Context& context, FileSystem& files) {
  const std::string& named = context.config.train.resume;
  try {
    return Checkpoints(context, context.folder + "/checkpoints", 0, files).find(named);
  } catch (const Error& error) {
    if (error.kind() != Failure::corrupt_data) throw;
    throw Error(error.kind(), error.what(), advice_for_damage(checkpoint_path(named, "RUN").path));
  }
}

Manifest manifest_of_use(const CheckpointInfo& info) { return read_manifest_file(info.path); }

}  // namespace

UseContext::UseContext(const Context& context, const Json& request, const Registry& registry,
                       const Components& components, const std::shared_ptr<Injector>& injector)
    : context_(context),
      options_(request),
      registry_(registry),
      components_(components),
      injector_(injector),
      files_(injector->decorate(system_files())),
      checkpoint_(find_checkpoint(context, files_)) {
  context.channel->on_abort([flag = aborted_](const Abort&) { flag->store(true); });
  contents_ = stored_contents(manifest_of_use(checkpoint_), checkpoint_.path);
}

UseContext::~UseContext() = default;

const Schema& UseContext::schema() {
  if (!schema_)
    schema_ = components_.data ? components_.data->schema()
                               : stored_schema(manifest_of_use(checkpoint_), checkpoint_.path, config(), registry_);
  return *schema_;
}

const std::vector<LoadedModel>& UseContext::models() {
  if (!models_.empty()) return models_;
  int members = 0;
  for (const StoredPiece& piece : manifest_of_use(checkpoint_).pieces) members = std::max(members, piece.member + 1);
  LoadRequest request;
  request.config = config();
  request.checkpoint = checkpoint_.path;
  request.schema = schema();
  request.contents = contents_;
  request.device = context_.devices.front();
  const bool all = members > 0 && checkpoint_.member < 0;
  for (int member = 0; member < (all ? members : 1); ++member) {
    request.member = all ? member : checkpoint_.member;
    models_.push_back(load_model(request, registry_));
  }
  return models_;
}

void UseContext::progress(int64_t done, int64_t total, const char* unit) {
  progress(total > 0 ? str(done, " of ", total, " ", unit) : str(done, " ", unit));
}

void UseContext::progress(const std::string& text) {
  if (aborted_->load(std::memory_order_relaxed)) {
    const std::optional<Abort> reason = context_.channel->aborted();
    throw CommError(Failure::peer_lost, reason ? reason->rank : -1, "rank ", context_.rank,
                    " ends: ", reason ? reason->message : "the job was ended");
  }
  context_.state->phase("evaluating");  // its time stamp shows progress
  if (context_.rank != 0) return;
  if (!reported_) context_.channel->post(protocol::first_step, Json{{"seconds", 0.0}});
  reported_ = true;
  const auto now = std::chrono::steady_clock::now();
  if (now - posted_ < std::chrono::milliseconds(250)) return;
  posted_ = now;
  context_.channel->post(protocol::progress, {{"text", str(options_.at("command").get<std::string>(), ": ", text)}});
}

std::unique_ptr<OutputFile> UseContext::output() const {
  return std::make_unique<OutputFile>(options_.at("to").get<std::string>(), options_.value("force", false), files_);
}

std::unique_ptr<Use> make_use(const std::string& command) { return entry_of(command).make(); }

}  // namespace convoy
