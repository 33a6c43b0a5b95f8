// Data check: all processes of a job train on the same data set.
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/stored_files.h"
#include "core/control/assignment.h"
#include "launch/rank/rank.h"

namespace convoy {
namespace {

// Longer than any reading: the supervisor ends a job without progress after launch.rendezvous.
constexpr Timeout reading_limit = std::chrono::hours(24 * 30);

class DataChecker {
 public:
  DataChecker(const DatasetPtr& data, const DataCheck& check)
      : data_(data), check_(check), config_(check.config), mine_(data->contents()) {}

  DatasetPtr run() {
    if (!check_.decided.is_null()) return follow(check_.decided);
    std::string numbers;  // the checkpoint whose numbers are used; "": those of the data
    DatasetPtr used = data_;
    if (const auto resumed = check_.first ? resumed_data(config_.train.resume, check_.folder) : std::nullopt) {
      used = resume_data(*resumed);
      if (used != data_) numbers = resumed->path;
    }
    const Json message{
        {"first", check_.first}, {"fingerprint", mine_.fingerprint}, {"host", check_.host}, {"numbers", numbers}};
    if (check_.first) check_.channel->post(protocol::checked_data, message);
    if (check_.processes == 1) return used;
    // Ranks start their rendezvous only after all processes have read their data.
    const std::vector<std::string> all =
        check_.channel->agree(protocol::data, check_.process, check_.processes, message.dump(), reading_limit);
    if (check_.first) return used;
    for (const std::string& text : all)
      if (const Json other = Json::parse(text); other.at("first")) return follow(other);
    throw Error(Failure::internal, "no process of the job has rank 0");
  }

 private:
  DatasetPtr resume_data(const ResumedData& resumed) {
    if (mine_.fingerprint.empty()) {
      log::warning(str("data set ", config_.data.name, " does not identify its data (Dataset::contents), so it ",
                       "cannot be compared with that of ", resumed.path, ": give the same data"));
      return data_;
    }
    if (!resumed.contents) {
      log::warning(str(resumed.path, " does not identify its data, because an earlier version wrote it: ",
                       "give the same data, which cannot be checked"));
      return data_;
    }
    const DataChange change = data_change(*resumed.contents, mine_);
    if (!change.unknown.empty() || (!change.other.empty() && !allowed())) refuse(resumed.path, change);
    if (!change.other.empty() && check_.trains)
      log::warning(str("data.changed is allow: the run resumes from ", resumed.path, " with other data (",
                       change.text(), ")", change.renumber ? " and the checkpoint's numbers" : "",
                       "; best values of metrics start again"));
    return change.renumber ? numbered(*resumed.contents) : data_;
  }

  DatasetPtr follow(const Json& first) const {
    if (first.at("fingerprint") != mine_.fingerprint)
      fail(Failure::disagreement,
           str("differs on host ", check_.host, " from what rank 0 reads on ", first.at("host").get<std::string>(),
               "; copy it from there, or use storage that all hosts share"));
    const std::string path = first.at("numbers");
    if (path.empty()) return data_;
    const auto stored = stored_contents(read_manifest_file(path), path);
    if (!stored)
      throw Error(Failure::io, path, ": host ", check_.host,
                  " cannot read its lists of ids, but rank 0 can; share the run folder");
    return numbered(*stored);
  }

  DatasetPtr numbered(const DataContents& stored) const {
    const DatasetPtr made = data_->numbered_as(stored);
    if (!made)
      fail(Failure::config,
           str("numbers ids or classes differently from the checkpoint, but data set ", config_.data.name,
               " cannot use the checkpoint's numbers (Dataset::numbered_as); give the same data"));
    return made;
  }

  bool allowed() const {
    return config_.data.options.has("changed") && config_.data.options.text("changed") == "allow";
  }

  [[noreturn]] void refuse(const std::string& path, const DataChange& change) const {
    if (!check_.trains)
      fail(Failure::config, str("has ids, classes or columns that the model does not know: ", change.text(),
                                "; give data with the ids, classes ", "and columns of the training"));
    const bool automatic = config_.train.resume == "auto";
    const std::string anew = automatic
                                 ? "start again: give another --output, or --set train.resume=never without --output"
                                 : "start again with --set train.resume=never";
    fail(automatic ? Failure::output : Failure::config,
         str("is not the data that ", path, " was trained on: ", change.text(), "; ",
             change.unknown.empty()
                 ? "type --set data.changed=allow to continue with this data and the checkpoint's numbers, or "
                 : "give data that the checkpoint knows, or ",
             anew));
  }

  [[noreturn]] void fail(Failure kind, const std::string& reason) const { refuse_data(config_, reason, kind); }

  const DatasetPtr& data_;
  const DataCheck& check_;
  const RunConfig& config_;
  const DataContents mine_;
};

}  // namespace

void refuse_data(const RunConfig& config, const std::string& reason, Failure kind) {
  const std::string key = config.data.options.has("path") ? "data.path" : "data";
  throw ConfigError(location_of(config.resolved, key), key, reason, kind);
}

DatasetPtr check_data(const DatasetPtr& data, const DataCheck& check) { return DataChecker(data, check).run(); }

}  // namespace convoy
