// Evaluations, to the `convoy` process that shows them. Progress is the trainer's own, at its own pace.
#include <utility>

#include "core/control/protocol.h"
#include "core/metrics/sink.h"

namespace convoy {
namespace {

class ChannelSink : public Sink {
 public:
  explicit ChannelSink(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  void write(const Record& record) override {
    if (record.kind != "train") channel_->post(protocol::metrics, to_json(record));
  }

 private:
  std::shared_ptr<Channel> channel_;
};

}  // namespace

std::unique_ptr<Sink> make_channel_sink(std::shared_ptr<Channel> channel) {
  return std::make_unique<ChannelSink>(std::move(channel));
}

}  // namespace convoy
