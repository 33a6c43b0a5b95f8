// A ControlStore under a lock.
#include "core/control/channel.h"

#include <condition_variable>
#include <mutex>

#include "core/control/connection.h"
#include "core/control/store.h"

namespace convoy {
namespace {

class LocalChannel : public SupervisedChannel {
 public:
  LocalChannel() : dispatcher_("convoy-events") {}
  ~LocalChannel() override { dispatcher_.close(); }

  void set(const std::string& key, const std::string& value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    store_.set(key, value);
  }

  std::string get(const std::string& key, Timeout timeout) override {
    return wait(str("get '", key, "'"), timeout, [&](ControlStore::Waiter waiter, ControlStore::Reply reply) {
      store_.get(waiter, key, std::move(reply));
    })[0];
  }

  std::optional<std::string> peek(const std::string& key) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return store_.peek(key);
  }

  int64_t add(const std::string& key, int64_t delta) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return store_.add(key, delta);
  }

  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return store_.compare_set(key, expected, desired);
  }

  bool erase(const std::string& key) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return store_.erase(key);
  }

  void watch(const std::string& prefix,
             std::function<void(const std::string& key, const std::string& value)> callback) override {
    std::lock_guard<std::mutex> lock(mutex_);
    store_.watch(0, prefix, [this, callback](const std::string& key, const std::string& value) {
      dispatcher_.post([callback, key, value] { callback(key, value); });
    });
  }

  std::vector<std::string> agree(const std::string& name, int participant, int count, const std::string& value,
                                 Timeout timeout) override {
    return wait(str("agree '", name, "'"), timeout, [&](ControlStore::Waiter waiter, ControlStore::Reply reply) {
      store_.agree(waiter, name, participant, count, value, false, std::move(reply));
    });
  }

  void vote(const std::string& name, int participant, int count, int64_t value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    store_.vote(name, participant, count, value);
  }

  void agree_later(const std::string& name, int participant, int count, const std::string& value,
                   std::function<void(const std::vector<std::string>&)> done) override {
    std::lock_guard<std::mutex> lock(mutex_);
    store_.agree({0, next_waiter_++}, name, participant, count, value, true,
                 [this, done = std::move(done)](const Outcome& outcome) {
                   if (outcome.kind != Outcome::Kind::done) return;
                   dispatcher_.post([done, values = outcome.values] { done(values); });
                 });
  }

  void post(const std::string&, const Json&) override {}

  void abort(const Abort& reason) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (store_.abort(reason) != ControlStore::AbortOutcome::first) return;
    for (auto& callback : abort_callbacks_) dispatcher_.post([callback, reason] { callback(reason); });
    abort_callbacks_.clear();
  }

  std::optional<Abort> aborted() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return store_.aborted();
  }

  void on_abort(std::function<void(const Abort&)> callback) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (store_.aborted()) {
      dispatcher_.post([callback, reason = *store_.aborted()] { callback(reason); });
    } else {
      abort_callbacks_.push_back(std::move(callback));
    }
  }

  void on_lost(std::function<void()>) override {}
  void on_heartbeat(std::function<std::optional<Json>()>) override {}  // no supervisor
  void stop_sending() override {}                                      // nothing is sent
  double cpu_seconds() override { return dispatcher_.cpu_seconds(); }
  int64_t clock() override {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  template <class Ask>
  std::vector<std::string> wait(const std::string& what, Timeout timeout, Ask ask) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::optional<Outcome> outcome;
    std::condition_variable replied;
    const ControlStore::Waiter waiter{0, next_waiter_++};
    ask(waiter, [&](Outcome result) {
      outcome = std::move(result);
      replied.notify_one();
    });
    if (!replied.wait_until(lock, deadline_after(timeout), [&] { return outcome.has_value(); })) store_.cancel(waiter);
    return values_or_throw(std::move(*outcome), what, timeout);
  }

  std::mutex mutex_;
  ControlStore store_;
  std::vector<std::function<void(const Abort&)>> abort_callbacks_;
  uint64_t next_waiter_ = 0;
  Dispatcher dispatcher_;  // last: destroyed first, because callbacks use the other members
};

}  // namespace

std::shared_ptr<Channel> make_local_channel() { return std::make_shared<LocalChannel>(); }

}  // namespace convoy
