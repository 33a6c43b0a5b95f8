#include "core/checkpoint/exchange.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "core/error.h"

namespace convoy {

Exchange::Exchange(const Context& context, const std::string& call)
    : context_(context), timeout_(int64_t(context.config.launch.collective * 1000)) {
  // By the communicator, since a key of the channel would have to be named by all before they agree on a name.
  token_ = random_token();
  at::Tensor letters = at::empty({int64_t(token_.size())}, at::kByte);
  std::memcpy(letters.mutable_data_ptr(), token_.data(), token_.size());
  at::Tensor told = letters.to(context.devices.front());
  context.world->broadcast(told, 0, {"checkpoint." + call, timeout_})->wait();
  told = told.to(at::kCPU);
  std::memcpy(token_.data(), told.const_data_ptr(), token_.size());
}

std::vector<std::string> Exchange::vote(const std::string& phase, const std::function<std::string()>& work) {
  Json mine{{"value", ""}};
  try {
    mine["value"] = work();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    mine = {{"kind", name_of(error.kind())}, {"error", error.what()}};
  } catch (const std::exception& error) {
    mine = {{"kind", name_of(Failure::io)}, {"error", error.what()}};
  }
  const std::string text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto votes = context_.channel->agree(key(phase), context_.rank, context_.size, text, timeout_);
  std::vector<std::string> values;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const Json vote = Json::parse(votes[rank]);
    if (vote.contains("error")) {
      const std::string who = context_.size > 1 ? convoy::str("rank ", rank, ": ") : "";
      throw Error(failure_named(vote["kind"]), who + vote["error"].get<std::string>());
    }
    values.push_back(vote["value"]);
  }
  return values;
}

void Exchange::together(const std::string& phase, const std::function<void()>& work) {
  vote(phase, [&] {
    work();
    return std::string();
  });
}

std::string Exchange::on_first(const std::string& phase, const std::function<std::string()>& work) {
  return vote(phase, [&] { return first() ? work() : std::string(); }).front();
}

std::vector<std::string> Exchange::to_first(const std::string& phase, const std::string& text) {
  std::vector<std::string> all;
  if (!first()) {
    context_.channel->set(key(phase) + convoy::str("/", context_.rank), text);
    return all;
  }
  all.push_back(text);
  for (int rank = 1; rank < context_.size; ++rank) {
    const std::string from = key(phase) + convoy::str("/", rank);
    all.push_back(context_.channel->get(from, timeout_));
    context_.channel->erase(from);
  }
  return all;
}

}  // namespace convoy
