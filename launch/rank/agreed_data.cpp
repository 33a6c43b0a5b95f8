#include "launch/rank/agreed_data.h"

#include "core/checkpoint/stored_contents.h"
#include "core/control/protocol.h"
#include "core/log.h"

namespace convoy {
namespace {

// Longer than any reading: the supervisor ends a job of which no rank makes progress for launch.rendezvous.
constexpr Timeout as_long_as_others_read = std::chrono::hours(24 * 30);

class Agreement {
 public:
  Agreement(const DatasetPtr& data, const DataAgreement& with)
      : data_(data), with_(with), config_(with.config), mine_(data->contents()) {}

  DatasetPtr reached() {
    std::string numbers;  // checkpoint whose numbers are used; "": the data's own
    DatasetPtr agreed = data_;
    if (const auto resumed = with_.first ? resumed_data(config_.train.resume, with_.folder) : std::nullopt) {
      agreed = continued(*resumed);
      if (agreed != data_) numbers = resumed->path;
    }
    if (with_.processes == 1) return agreed;
    // No rank begins to meet the others while one of them reads.
    const Json own{
        {"first", with_.first}, {"fingerprint", mine_.fingerprint}, {"host", with_.host}, {"numbers", numbers}};
    const std::vector<std::string> all =
        with_.channel->agree(protocol::data, with_.process, with_.processes, own.dump(), as_long_as_others_read);
    if (with_.first) return agreed;
    for (const std::string& text : all)
      if (const Json other = Json::parse(text); other.at("first")) return follow(other);
    throw Error(Failure::internal, "no process of the job says that it has rank 0");
  }

 private:
  DatasetPtr continued(const ResumedData& resumed) {
    if (mine_.fingerprint.empty()) {
      log::warning(str("data set ", config_.data.name, " does not say what data it holds (Dataset::contents), so it ",
                       "cannot be compared with that of ", resumed.path, ": give the same data"));
      return data_;
    }
    if (!resumed.contents) {
      log::warning(str(resumed.path, " does not say what data it was trained on, as it is of an earlier version: ",
                       "give the same data, which cannot be checked"));
      return data_;
    }
    const DataChange change = data_change(*resumed.contents, mine_);
    if (!change.unknown.empty() || (!change.other.empty() && !allowed())) refuse(resumed.path, change);
    if (!change.other.empty())
      log::warning(str("data.changed is allow: the run goes on from ", resumed.path, " with other data (",
                       change.text(), ")", change.renumber ? " and the checkpoint's numbers" : "",
                       "; best values of metrics are counted anew"));
    return change.renumber ? numbered(*resumed.contents) : data_;
  }

  DatasetPtr follow(const Json& first) const {
    if (first.at("fingerprint") != mine_.fingerprint)
      fail(Failure::disagreement,
           str("is not on host ", with_.host, " what rank 0 reads on ", first.at("host").get<std::string>(),
               ": its contents differ; copy it from there, or name storage that all hosts share"));
    const std::string path = first.at("numbers");
    if (path.empty()) return data_;
    const auto stored = stored_contents(read_manifest_file(path), path);
    if (!stored)
      throw Error(Failure::io, str(path, ": rank 0 read its lists of ids, and host ", with_.host, " cannot"));
    return numbered(*stored);
  }

  DatasetPtr numbered(const DataContents& stored) const {
    const DatasetPtr made = data_->numbered_as(stored);
    if (!made)
      fail(Failure::config, str("gives numbers to ids or classes that differ from the checkpoint's, and data set ",
                                config_.data.name, " cannot take those"));
    return made;
  }

  bool allowed() const {
    return config_.data.options.has("changed") && config_.data.options.text("changed") == "allow";
  }

  [[noreturn]] void refuse(const std::string& path, const DataChange& change) const {
    const bool own = config_.train.resume == "auto";
    const std::string anew = own ? "start anew with another --output, or with --set train.resume=never and without one"
                                 : "start anew with --set train.resume=never";
    fail(own ? Failure::output : Failure::config,
         str("is not the data that ", path, " was trained on: ", change.text(), "; ",
             change.unknown.empty()
                 ? "type --set data.changed=allow to go on with this data and the checkpoint's numbers, or "
                 : "give data that the checkpoint knows, or ",
             anew));
  }

  [[noreturn]] void fail(Failure kind, const std::string& reason) const {
    const Json& data = config_.resolved.at("data");
    const std::string key = data.contains("path") ? "data.path" : "data";
    throw ConfigError(mark_of(config_.resolved, key), key, reason, kind);
  }

  const DatasetPtr& data_;
  const DataAgreement& with_;
  const RunConfig& config_;
  const DataContents mine_;
};

}  // namespace

DatasetPtr agreed_data(const DatasetPtr& data, const DataAgreement& agreement) {
  return Agreement(data, agreement).reached();
}

}  // namespace convoy
