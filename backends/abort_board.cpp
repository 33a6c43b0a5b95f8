// Abort over the control channel: key "abort-comm/JOB/GROUP" holds the reason.
#include "backends/abort_board.h"

namespace convoy {

AbortBoard::AbortBoard(std::shared_ptr<Channel> channel, const std::string& job)
    : channel_(std::move(channel)), prefix_("abort-comm/" + job + "/") {}

std::shared_ptr<AbortBoard> AbortBoard::create(std::shared_ptr<Channel> channel, const std::string& job) {
  std::shared_ptr<AbortBoard> board(new AbortBoard(std::move(channel), job));
  if (!board->channel_) return board;
  // The channel keeps its callbacks for good and may outlive the board.
  std::weak_ptr<AbortBoard> weak = board;
  board->channel_->watch(board->prefix_, [weak](const std::string& key, const std::string& value) {
    if (auto self = weak.lock()) self->on_key(key, value);
  });
  board->channel_->on_abort([weak](const Abort& abort) {
    auto self = weak.lock();
    if (!self) return;
    std::string who = abort.rank < 0 ? "the job ends" : str("rank ", abort.rank, " ended the job");
    self->on_end(str(who, " (", name_of(abort.kind), "): ", abort.message));
  });
  board->channel_->on_lost([weak] {
    if (auto self = weak.lock()) self->on_end("the control channel is gone: the launcher of rank 0's host has ended");
  });
  return board;
}

void AbortBoard::add(const std::string& group, Handler handler) {
  std::lock_guard lock(mutex_);
  if (ended_) {
    handler(*ended_);
  } else if (auto found = aborted_.find(group); found != aborted_.end()) {
    handler(found->second);
  }
  handlers_[group] = std::move(handler);
}

void AbortBoard::remove(const std::string& group) {
  std::lock_guard lock(mutex_);
  handlers_.erase(group);
}

void AbortBoard::tell(const std::string& group, const std::string& reason) {
  if (!channel_) return;
  try {
    channel_->set(prefix_ + group, reason);
  } catch (const std::exception&) {
    // Without a channel the peers have been told already, by its loss.
  }
}

void AbortBoard::on_key(const std::string& key, const std::string& reason) {
  std::string group = key.substr(prefix_.size());
  std::lock_guard lock(mutex_);
  aborted_.emplace(group, reason);
  if (auto found = handlers_.find(group); found != handlers_.end()) found->second(reason);
}

void AbortBoard::on_end(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!ended_) ended_ = reason;
  for (const auto& [group, handler] : handlers_) handler(reason);
}

}  // namespace convoy
