// Answers of a rank process to an inquiry of the supervisor, as api/stall_reporter.cpp gives them, without LibTorch.
#pragma once
#include <memory>
#include <string>

#include "core/base/json.h"
#include "core/control/channel.h"
#include "core/rank_state/position.h"

namespace convoy::testing {

// Answers with this position and, if requested, one stack, while the channel lives.
inline void answer_inquiries(const std::shared_ptr<Channel>& channel, const RankReport& report) {
  channel->watch(protocol::inquiry,
                 [weak = std::weak_ptr<Channel>(channel), report](const std::string&, const std::string& value) {
                   const auto alive = weak.lock();
                   if (!alive) return;
                   const Json inquiry = Json::parse(value);
                   alive->post(protocol::where, {{"id", inquiry.at("id")}, {"ranks", Json::array({to_json(report)})}});
                   if (!inquiry.at("stacks").get<bool>()) return;
                   ThreadStack stack;
                   stack.rank = stack.process = report.rank;
                   stack.state = "R";
                   stack.frames = {"/no/such/libmodel.so+0x10"};
                   alive->post(protocol::stacks,
                               {{"id", inquiry.at("id")}, {"process", report.rank}, {"threads", Json::array({stack})}});
                 });
}

}  // namespace convoy::testing
