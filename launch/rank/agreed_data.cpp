#include "launch/rank/agreed_data.h"

#include "core/checkpoint/stored_contents.h"
#include "core/control/protocol.h"
#include "core/log.h"

namespace convoy {
namespace {

class Agreement {
 public:
  Agreement(const DatasetPtr& data, const DataAgreement& with)
      : data_(data), with_(with), config_(with.config), mine_(data->contents()) {}

  DatasetPtr reached() {
    if (mine_.fingerprint.empty()) return data_;
    return with_.first ? decide() : follow();
  }

 private:
  DatasetPtr decide() {
    DatasetPtr agreed = data_;
    std::string numbers;  // checkpoint whose numbers are used; "": the data's own
    if (const auto resumed = resumed_data(config_.train.resume, with_.folder)) {
      agreed = continued(*resumed);
      if (agreed != data_) numbers = resumed->path;
    }
    if (!with_.alone)
      with_.channel->set(protocol::data,
                         Json{{"fingerprint", mine_.fingerprint}, {"host", with_.host}, {"numbers", numbers}}.dump());
    return agreed;
  }

  DatasetPtr continued(const ResumedData& resumed) {
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

  DatasetPtr follow() const {
    const Json told = Json::parse(with_.channel->get(protocol::data, with_.timeout));
    if (told.at("fingerprint") != mine_.fingerprint)
      fail(Failure::disagreement,
           str("is not on host ", with_.host, " what rank 0 reads on ", told.at("host").get<std::string>(),
               ": its contents differ; copy it from there, or name storage that all hosts share"));
    const std::string path = told.at("numbers");
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
