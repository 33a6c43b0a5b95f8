#include "api/run/run_impl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <exception>
#include <utility>

#include "api/trained_impl.h"
#include "core/base/log.h"
#include "core/files/files.h"
#include "core/rank_state/position.h"

namespace convoy {
namespace {

std::string from_hex_text(const std::string& hex, const std::string& name, const std::string& path) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const auto value = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    const int high = value(hex[i]), low = value(hex[i + 1]);
    if (high < 0 || low < 0) break;
    bytes += static_cast<char>(high * 16 + low);
  }
  if (2 * bytes.size() != hex.size())
    throw Error(Failure::corrupt_data, path, "/manifest.json: the kept value '", name, "' is no hexadecimal text");
  return bytes;
}

void check_name(const char* call, const std::string& metric) {
  if (metric.empty()) throw Error(Failure::config, call, ": the metric has no name; give one, such as \"loss\"");
}

}  // namespace

// --- Beginning ---

Run::Impl::Impl(const Job& of_job, const std::string& folder, Trained& of_trained)
    : job_users(of_job.impl().lifetime.users()),
      trained_users(of_trained.impl().lifetime().users()),
      job(of_job),
      context(context_of(of_job)),
      trained(of_trained),
      strategy(strategy_of(of_trained)),
      exceptions(std::uncaught_exceptions()) {
  if (!job.impl().supervised()) {
    embedded_folder.emplace(context, folder);
  } else if (context.rank == 0 && absolute_path(folder) != absolute_path(context.folder)) {
    std::string words;
    for (const std::string& word : job.arguments()) words += " " + shell_word(word);
    log::info(str("the run folder is ", context.folder, "; the program names ", folder,
                  ": to use that one, type convoy run ", context.size > 1 ? str("--ranks ", context.size, " ") : "",
                  "--output ", shell_word(folder), " --", words));
  }
  begin_progress();
  context.state->phase(loading_phase);
  std::exception_ptr lost;
  try {
    if (!take_over_training())
      if (const std::optional<CheckpointInfo> info = progress->checkpoint()) restore(*info);
  } catch (...) {
    if (!job.impl().joins() || translate_exception(Failure::training).kind != Failure::peer_lost) throw;
    lost = std::current_exception();
  }
  if (lost && !continue_with_others()) std::rethrow_exception(lost);
  context.state->phase("training");
  if (job.impl().continues()) trained.impl().on_update([this] { note_update(); });
  trained.impl().on_loss([this](const Metric& loss) {
    if (open_ && !logs_loss_) losses_.push_back(loss);
  });
}

Run::Impl::~Impl() {
  trained.impl().on_loss(nullptr);
  trained.impl().on_update(nullptr);
}

void Run::Impl::begin_progress() {
  ProgressOptions options;
  if (const std::shared_ptr<Injector> injector = job.impl().injector) {
    options.reached = [injector](InjectPoint point, int64_t number) { injector->reached(point, number); };
    options.files = &injector->decorate(uncached_files());
  }
  progress.emplace(context, options);
  metrics.emplace(context);
}

void Run::Impl::restore(const CheckpointInfo& info) {
  progress->load(strategy, info, nullptr);
  const auto rates = info.trainer.find(rate_key);
  if (rates != info.trainer.end() && !trained.impl().has_torch_optimizer()) {
    const double before = trained.learning_rate();
    trained.impl().set_learning_rates(rates->get<std::vector<double>>());
    if (context.rank == 0 && !progress->owns(info) && trained.learning_rate() != before)
      log::info(str("learning rate ", trained.learning_rate(), ", from ", info.path, ", and not ", before));
  }
  from_ = info;
}

void Run::Impl::restore_from(const std::string& path) {
  if (settings) throw Error(Failure::config, "resume: share was called before; call resume first");
  if (taken_over_) return;  // the others began there
  resumed_path_ = path;
  if (from_ && progress->owns(*from_)) {  // a restart of this run
    if (context.rank == 0) log::info(str("this run resumes from ", from_->path, ", and not from ", path, " again"));
    return;
  }
  context.state->phase(loading_phase);
  context.config.train.resume = path;
  progress->set_length(context.config.train, {}, {});
  restore(*progress->checkpoint());
  for (const auto& [name, object] : kept_) restore_kept(name, object);
  context.state->phase("training");
}

void Run::Impl::keep(const std::string& name, std::function<std::string()> save,
                     std::function<void(const std::string&)> load) {
  if (settings) throw Error(Failure::config, "keep: share was called before; keep '", name, "' before it");
  const auto [entry, is_new] = kept_.emplace(name, Stored{std::move(save), std::move(load)});
  if (!is_new) throw Error(Failure::config, "keep: '", name, "' is kept already; give each object another name");
  restore_kept(name, entry->second);
}

void Run::Impl::restore_kept(const std::string& name, const Stored& object) {
  if (taken_over_) {
    const BodyStart& start = starts_.begin()->second;
    if (const auto found = start.kept.find(name); found != start.kept.end()) object.load(found->second);
    return;
  }
  if (!from_) return;
  const bool same_ranks = from_->trainer.value("world_size", context.size) == context.size;
  const Json::json_pointer pointer(str("/ranks/", same_ranks ? context.rank : 0, "/", kept_section));
  const Json values = from_->trainer.value(pointer, Json::object());
  if (const auto found = values.find(name); found != values.end())
    object.load(from_hex_text(found->get<std::string>(), name, from_->path));
  else if (context.rank == 0)
    log::info(
        str("checkpoint ", from_->path, " does not have '", name, "', which this program keeps: it stays as it is"));
}

// --- Checkpoints and the end ---

void Run::Impl::save() {
  if (!settings) throw Error(Failure::config, "save: call share first: it decides how steps are counted");
  check_others_call(job.impl(), "save");
  check_savable();
  if (ahead()) {
    save_postponed_ = checkpoint_owed_ = true;
    return;
  }
  if (!updated())
    throw Error(Failure::config, "save: gradients are accumulated and would be lost; call it after step()");
  save_after(done(), true);
}

void Run::Impl::save_after(int64_t steps, bool last) {
  trained.impl().adopt_loaded();
  trained.impl().check_equal_values();
  SavedState more;
  more.last = last;
  more.trainer = {{share_section, settings->batches()}};
  if (!trained.impl().has_torch_optimizer())  // a torch optimizer's rates are part of its state
    if (const auto rates = trained.impl().learning_rates(); !rates.empty()) more.trainer[rate_key] = rates;
  for (const auto& [name, object] : kept_) {
    const std::string text = object.save();
    more.rank[kept_section][name] = hex_text(reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  progress->save(strategy, steps, more);
  trained.impl().continue_training();
  if (open_) context.state->phase("forward/backward");
}

void Run::Impl::finish() {
  if (finished) return;
  finished = true;
  if (!settings) return;
  leave();
  if (resumed() && progress->step() == progress->first_step() && context.rank == 0)
    log::info(str("nothing was left to train after step ", progress->step()));
  context.state->phase("done");
  job.impl().result = progress->result(strategy);
  if (embedded_folder) embedded_folder->finish(job.impl().result);
}

// --- Run ---

Run Job::resume(const std::string& folder, Trained& trained) {
  if (std::exchange(impl_->has_run, true))
    throw Error(Failure::config, "resume(", folder,
                "): this job has a Run already, and a job has one run folder; save "
                "another Trained by run.keep(name, save, load), or train both modules as one");
  return Run(std::make_unique<Run::Impl>(*this, folder, trained));
}

Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Run::Run(Run&&) noexcept = default;
Run::~Run() noexcept(false) {
  if (impl_ && std::uncaught_exceptions() == impl_->exceptions) impl_->finish();
}

void Run::log(const std::string& name, const at::Tensor& sum, std::optional<double> weight) {
  check_name("log", name);
  impl_->log(name, sum, weight);
}

void Run::log(const std::string& name, double sum, std::optional<double> weight) {
  log(name, at::tensor(sum, at::kDouble), weight);
}

double Run::evaluated(const std::string& name, const at::Tensor& sum, double weight, Best best) {
  check_name("evaluated", name);
  check_others_call(impl_->job.impl(), "evaluated");
  at::NoGradGuard no_grad;
  const Context& context = impl_->context;
  at::Tensor both = at::stack({sum.detach().reshape({}).to(at::kDouble).cpu(), at::scalar_tensor(weight, at::kDouble)})
                        .to(context.devices.front());
  context.world->all_reduce(both, ReduceOp::sum, {"evaluation", {}})->wait();
  both = both.cpu();
  MetricValue value;
  value.weight = both[1].item<double>();
  value.value = both[0].item<double>() / value.weight;
  value.lower_is_better = best == Best::lowest;
  if (impl_->settings) impl_->progress->record_evaluation(impl_->done(), {{name, value}});
  return value.value;
}

double Run::evaluated(const std::string& name, double sum, double weight, Best best) {
  return evaluated(name, at::tensor(sum, at::kDouble), weight, best);
}

void Run::save() { impl_->save(); }
void Run::resume(const std::string& path) { impl_->restore_from(path); }
void Run::keep(const std::string& name, std::function<std::string()> save,
               std::function<void(const std::string&)> load) {
  impl_->keep(name, std::move(save), std::move(load));
}
int64_t Run::step() const { return impl_->done(); }
bool Run::resumed() const { return impl_->resumed(); }
bool Run::stopped() const { return impl_->progress && impl_->progress->stopped(); }
const std::string& Run::folder() const { return impl_->context.folder; }
void Run::finish() { impl_->finish(); }

}  // namespace convoy
