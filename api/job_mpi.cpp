// Jobs on an MPI communicator of the application. The process of rank 0 serves the control channel.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "api/job_impl.h"
#include "backends/registry.h"
#include "core/base/log.h"
#include "core/control/addresses.h"
#include "core/control/channel.h"
#include "core/rank_state/position.h"

namespace convoy {
namespace {

// "rank 2 (step 4, forward/backward, last call: barrier 'start')".
std::string position_text(const RankReport& report, const std::string& group) {
  const RankCall* last = nullptr;
  for (const RankCall& call : report.calls)
    if (call.group == group && (last == nullptr || call.number > last->number)) last = &call;
  const std::string step = report.position.step >= 0 ? str("step ", report.position.step, ", ") : "";
  return str("rank ", report.rank, " (", step, report.position.phase, ", ",
             last != nullptr ? "last call: " + last->call : "no call yet", ")");
}

// Rank 0's server of the control channel. Ends the job if a rank disappears, or if others wait too long for a rank.
class EmbeddedServer {
 public:
  EmbeddedServer(const std::string& address, int size, const LaunchConfig& launch) : size_(size) {
    ChannelServerOptions options;
    options.interface_address = address;
    options.port = static_cast<uint16_t>(launch.port);
    options.job = random_token();
    options.heartbeat = timeout_of(launch.heartbeat);
    ChannelServerEvents events;
    events.on_leave = [this](int rank, const std::string&, bool orderly) { left(rank, orderly); };
    events.on_post = [this](int, const std::string& topic, const Json& body) { posted(topic, body); };
    events.on_stalled = [this](int rank, const std::string&, double seconds) {
      end_job({Failure::hang, rank, -1, 0, "",
               str("rank ", rank, " has sent no heartbeat for ", human_seconds(seconds), " (launch.heartbeat)")});
    };
    server_ = serve_channel(options, events);
  }
  // Waits briefly for the other ranks, whose last messages this server reads.
  ~EmbeddedServer() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(2), [this] { return left_ + 1 >= size_; });
    lock.unlock();
    server_.reset();
  }
  ChannelAddress address() const { return server_->address(); }
  void watch(const std::shared_ptr<Channel>& channel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    channel_ = channel;
  }

 private:
  void left(int rank, bool orderly) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (rank != 0) ++left_;
    }
    changed_.notify_all();
    if (!orderly)
      end_job({Failure::training, rank, -1, 0, "", str("rank ", rank, " is gone: its process ended before the job")});
  }
  // Every rank answers an inquiry from a separate thread, so a stalled rank answers too.
  void posted(const std::string& topic, const Json& body) {
    if (topic == protocol::slow_collective && body.at("over").get<bool>() && !slow_) {
      slow_ = body.get<SlowCollective>();
    } else if (topic == protocol::where) {
      for (const Json& one : body.at("ranks")) {
        const RankReport report = report_from_json(one);
        reports_[report.rank] = report;
      }
    } else {
      return;
    }
    if (slow_ && static_cast<int>(reports_.size()) == size_) name_stalled();
  }
  void name_stalled() {
    std::vector<std::string> texts;
    Abort reason;
    reason.kind = Failure::hang;
    for (const int rank : slow_->members) {
      const RankReport& report = reports_.at(rank);
      const bool called = std::any_of(report.calls.begin(), report.calls.end(), [this](const RankCall& call) {
        return call.group == slow_->group && call.number >= slow_->number;
      });
      if (called) continue;
      if (texts.empty()) reason.rank = rank;
      if (texts.empty()) reason.step = report.position.step;
      texts.push_back(position_text(report, slow_->group));
    }
    if (texts.empty()) return;
    reason.message = str(slow_->call, " of group ", slow_->group, " waited ", human_seconds(slow_->seconds), " for ",
                         join(texts, ", "), texts.size() == 1 ? ", which has" : ", which have",
                         " not called it; its time limit is ", human_seconds(slow_->limit),
                         " (launch.collective): look where that rank waits, or raise the limit if it is only slow");
    end_job(reason);
  }
  void end_job(const Abort& reason) {
    std::shared_ptr<Channel> channel;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      channel = channel_.lock();
    }
    if (channel) channel->abort(reason);
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_ = 0;
  std::weak_ptr<Channel> channel_;
  std::optional<SlowCollective> slow_;  // the server's thread
  std::map<int, RankReport> reports_;   // the server's thread
  std::unique_ptr<ChannelServer> server_;
};

// Address of rank 0 that every host reaches. `texts`: the interfaces of each rank.
std::string serving_address_of(const std::string& configured, const MpiRank& mpi,
                               const std::vector<std::string>& texts) {
  const std::vector<Interface> here = interfaces_here();
  if (!configured.empty()) return configured_address(configured, here);
  if (mpi.local_size == mpi.size) return "127.0.0.1";
  std::vector<std::vector<Interface>> others;
  for (const std::string& text : texts) others.push_back(Json::parse(text).get<std::vector<Interface>>());
  others.erase(others.begin());
  if (const auto common = common_network(here, others)) return common->address;
  for (const Interface& one : here)
    if (!one.loopback) return one.address;
  throw Error(Failure::rendezvous,
              "the hosts of the MPI communicator have no common network; name one by the setting "
              "launch.address=10.0.0.0/16");
}

}  // namespace

Job Job::over_mpi(int fortran_communicator, const std::vector<std::string>& settings) {
  EmbeddedRank rank;
  rank.settings = settings;
  rank.arguments = process_arguments();
  const RunConfig config = embedded_config(rank.arguments, settings);
  const auto limit = timeout_of(config.launch.rendezvous);
  const MpiRank mpi = mpi_rank(fortran_communicator);
  rank.rank = mpi.rank;
  rank.size = mpi.size;
  rank.local_rank = mpi.local_rank;
  rank.local_size = mpi.local_size;
  if (mpi.size == 1) {
    rank.channel = make_local_channel();
    return embedded_job(rank);
  }
  const std::vector<std::string> interfaces =
      mpi_exchange_texts(fortran_communicator, Json(interfaces_here()).dump(), limit);
  std::shared_ptr<EmbeddedServer> server;
  std::string address;
  if (mpi.rank == 0) {
    server = std::make_shared<EmbeddedServer>(serving_address_of(config.launch.address, mpi, interfaces), mpi.size,
                                              config.launch);
    address = to_string(server->address());
  }
  address = mpi_exchange_texts(fortran_communicator, address, limit).front();
  rank.channel = connect_channel(channel_address(address), mpi.rank, str("rank ", mpi.rank), limit);
  if (server) server->watch(rank.channel);
  rank.holds = server;
  rank.backend = "mpi";
  rank.backends = std::make_shared<Registry>();
  register_backends(*rank.backends);
  rank.mpi_communicator = fortran_communicator;
  return embedded_job(rank);
}

}  // namespace convoy
