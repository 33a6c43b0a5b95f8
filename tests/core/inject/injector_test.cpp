// Faults in a rank's model, communicator and files; tests/faults has faults that end a process.
#include "core/inject/injector.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>

#include "core/base/error.h"
#include "core/communicator.h"
#include "core/control/channel.h"
#include "core/model.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::shared_ptr<Injector> injector(const std::vector<std::string>& faults, int rank = 0, int attempt = 0) {
  InjectRequest request;
  request.faults = faults;
  request.rank = rank;
  request.size = 2;
  request.attempt = attempt;
  request.channel = make_local_channel();
  return std::make_shared<Injector>(request);
}

// Doubles its input with a parameter, in a child module.
class Doubling : public Block {
 public:
  Doubling() {
    child_ = register_module("child", std::make_shared<Child>());
    own_ = register_parameter("own", at::ones({1}));
    fixed_ = register_buffer("fixed", at::zeros({1}));
  }
  TensorList forward(const TensorList& inputs) override { return {inputs[0] * child_->two * own_ + fixed_, inputs[1]}; }

 private:
  struct Child : torch::nn::Module {
    Child() { two = register_parameter("two", at::full({1}, 2.0)); }
    at::Tensor two;
  };
  std::shared_ptr<Child> child_;
  at::Tensor own_, fixed_;
};

class DoublingModel : public Model {
 public:
  int64_t blocks() const override { return 2; }
  std::string block_name(int64_t index) const override { return str("double.", index); }
  BlockPtr block(int64_t, Layers&) const override { return std::make_shared<Doubling>(); }
  TensorList inputs(const Batch&) const override { return {}; }
  Examples examples(const TensorList&, const Batch&) const override { return {}; }
  std::string default_loss() const override { return "mse"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }
};

Layers& no_layers() {
  static char nothing;
  return reinterpret_cast<Layers&>(nothing);  // Doubling requests none
}

const TensorList input{at::ones({3}), at::ones({3}, at::kLong)};

TEST(Injector, ChangesNothingWithoutAFault) {
  const auto model = std::make_shared<const DoublingModel>();
  const CommunicatorPtr group = make_single_communicator();
  for (const auto& none : {injector({}), injector({"nan@step=3", "mismatch", "enospc"}, 1),
                           injector({"nan", "mismatch", "enospc"}, 0, 1)}) {
    EXPECT_TRUE(none->idle());
    EXPECT_EQ(none->decorate(ModelPtr(model)), model);
    EXPECT_EQ(none->decorate(group), group);
    EXPECT_EQ(&none->decorate(system_files()), &system_files());
    none->reached(InjectPoint::step, 3);
    none->waiting();
  }
}

TEST(Injector, ABlockReturnsNaNOnce) {
  const auto faults = injector({"nan:block=1@step=3"});
  const ModelPtr model = faults->decorate(std::make_shared<const DoublingModel>());
  const BlockPtr first = model->block(0, no_layers()), second = model->block(1, no_layers());
  auto sum = [](const BlockPtr& block) { return block->forward(input)[0].sum().item<double>(); };
  faults->reached(InjectPoint::step, 2);
  EXPECT_EQ(sum(second), 6);
  faults->reached(InjectPoint::step, 3);
  EXPECT_EQ(sum(first), 6);
  second->eval();
  EXPECT_EQ(sum(second), 6) << "an evaluation";
  second->train();
  // A checkpointed block runs without a graph at first.
  const TensorList outputs = [&] {
    at::NoGradGuard no_grad;
    return second->forward(input);
  }();
  EXPECT_TRUE(outputs[0].isnan().all().item<bool>());
  EXPECT_TRUE(outputs[1].equal(input[1])) << "what has no NaN stays";
  EXPECT_EQ(sum(second), 6) << "the next micro-batch is well again";
}

TEST(Injector, KeepsOtherPropertiesOfABlock) {
  const auto faults = injector({"throw:block=0@step=3"});
  const BlockPtr block = faults->decorate(std::make_shared<const DoublingModel>())->block(0, no_layers());
  const auto parameters = block->named_parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_TRUE(parameters.contains("own"));
  EXPECT_TRUE(parameters.contains("child.two"));
  EXPECT_TRUE(block->named_buffers().contains("fixed"));
  block->to(at::kDouble);
  EXPECT_EQ(block->forward(input)[0].scalar_type(), at::kDouble) << "the tensors are those that it computes with";
  block->eval();
  EXPECT_FALSE(block->children().front()->is_training());
  block->train();
  faults->reached(InjectPoint::step, 3);
  EXPECT_THAT([&] { block->forward(input); }, ThrowsMessage<std::runtime_error>(HasSubstr("throw:block=0@step=3")));
  EXPECT_NO_THROW(block->forward(input));
}

TEST(Injector, FaultsAtOnePointHappenInOrder) {
  const auto faults = injector({"sleep:0.2s@epoch=2", "throw@epoch=2", "throw@evaluate=1"});
  faults->reached(InjectPoint::epoch, 1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT([&] { faults->reached(InjectPoint::epoch, 2); },
              ThrowsMessage<std::runtime_error>(HasSubstr("@epoch=2")));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200));
  EXPECT_NO_THROW(faults->reached(InjectPoint::epoch, 2));
  EXPECT_THAT([&] { faults->reached(InjectPoint::evaluate, 1); },
              ThrowsMessage<std::runtime_error>(HasSubstr("@evaluate=1")));
}

// Records the calls that reach the communicator.
class Noting : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  const std::string& backend() const override { return inner_->backend(); }
  std::vector<at::DeviceType> devices() const override { return inner_->devices(); }
  int64_t bytes_sent() const override { return 7; }
  double wait_seconds() const override { return 8; }
  double wait_cpu_seconds() const override { return 9; }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp, const CallOptions&) override { return note("all_reduce", tensor); }
  WorkPtr all_gather(at::Tensor output, at::Tensor input, const CallOptions&) override {
    EXPECT_EQ(output.numel(), 2 * input.numel());
    return note("all_gather", input);
  }
  WorkPtr all_gather_v(at::Tensor, at::Tensor input, const std::vector<int64_t>&, const CallOptions&) override {
    return note("all_gather_v", input);
  }
  WorkPtr all_to_all_v(at::Tensor, const std::vector<int64_t>&, at::Tensor input, const std::vector<int64_t>&,
                       const CallOptions&) override {
    return note("all_to_all_v", input);
  }
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp, const CallOptions&) override {
    EXPECT_EQ(input.numel(), 2 * output.numel());
    return note("reduce_scatter", output);
  }
  WorkPtr broadcast(at::Tensor tensor, int, const CallOptions&) override { return note("broadcast", tensor); }
  WorkPtr send(at::Tensor tensor, int, const CallOptions&) override { return note("send", tensor); }
  WorkPtr receive(at::Tensor tensor, int, const CallOptions&) override { return note("receive", tensor); }
  WorkPtr group(const std::vector<Transfer>&, const CallOptions&) override { return note("group", {}); }
  WorkPtr barrier(const CallOptions&) override { return note("barrier", {}); }
  CommunicatorPtr split(int, int, const CallOptions&) override { return std::make_shared<Noting>(); }
  void abort(const std::string&) override { called = "abort"; }

  std::string called;
  at::Tensor with;

 private:
  WorkPtr note(const char* name, const at::Tensor& tensor) {
    called = name;
    with = tensor;
    return inner_->barrier({});
  }
  CommunicatorPtr inner_ = make_single_communicator();
};

TEST(Injector, ReplacesOneCollective) {
  struct Case {
    const char* fault;
    const char* called;
    at::ScalarType dtype;
    int64_t elements;
  };
  for (const Case& expected : {Case{"mismatch:shape@step=1", "all_reduce", at::kFloat, 5},
                               Case{"mismatch:dtype@step=1", "all_reduce", at::kDouble, 4},
                               Case{"mismatch:operation@step=1", "broadcast", at::kFloat, 4}}) {
    const auto faults = injector({expected.fault});
    const auto noting = std::make_shared<Noting>();
    const CommunicatorPtr group = faults->decorate(CommunicatorPtr(noting));
    ASSERT_NE(group, noting);
    EXPECT_EQ(group->bytes_sent(), 7);
    at::Tensor tensor = at::ones({4});
    group->all_reduce(tensor, ReduceOp::sum, {})->wait();
    EXPECT_TRUE(noting->with.is_same(tensor));
    faults->reached(InjectPoint::step, 1);
    group->all_reduce(tensor, ReduceOp::sum, {})->wait();
    EXPECT_EQ(noting->called, expected.called);
    EXPECT_EQ(noting->with.scalar_type(), expected.dtype);
    EXPECT_EQ(noting->with.numel(), expected.elements);
    group->all_reduce(tensor, ReduceOp::sum, {})->wait();
    EXPECT_EQ(noting->called, "all_reduce") << "once";
    EXPECT_TRUE(noting->with.is_same(tensor));
  }
}

TEST(Injector, ReplacesEveryKindOfCollective) {
  for (const char* fault : {"mismatch:shape@step=1", "mismatch:dtype@step=1", "mismatch:operation@step=1"}) {
    using Call = std::function<WorkPtr(Communicator&)>;
    const std::map<std::string, Call> calls{
        {"all_gather",
         [](Communicator& group) {
           return group.all_gather(at::ones({2, 4}), at::ones({4}), {});
         }},
        {"reduce_scatter",
         [](Communicator& group) {
           return group.reduce_scatter(at::ones({4}), at::ones({2, 4}), ReduceOp::sum, {});
         }},
        {"broadcast", [](Communicator& group) { return group.broadcast(at::ones({4}), 0, {}); }},
    };
    for (const auto& [name, call] : calls) {
      const auto faults = injector({fault});
      const auto noting = std::make_shared<Noting>();
      const CommunicatorPtr group = faults->decorate(CommunicatorPtr(noting))->split(0, 0, {});
      const CommunicatorPtr whole = faults->decorate(CommunicatorPtr(noting));
      faults->reached(InjectPoint::step, 1);
      call(*whole)->wait();
      const bool same = noting->called == name && noting->with.numel() == 4 && noting->with.scalar_type() == at::kFloat;
      EXPECT_FALSE(same) << fault << " left " << name << " as it was";
    }
  }
}

TEST(Injector, FailsOneWriteWithAFullDisk) {
  const auto folder = std::filesystem::temp_directory_path() / ("convoy-inject-" + random_token());
  std::filesystem::create_directories(folder);
  for (const std::string part : {"write", "fsync", "close"}) {
    const auto faults = injector({"enospc:" + part + "@save=2"});
    FileSystem& files = faults->decorate(system_files());
    auto save = [&](int number) {
      faults->reached(InjectPoint::save, number);
      const auto file = files.create((folder / (part + std::to_string(number))).string());
      file->write("12345678", 8);
      file->close();
    };
    save(1);
    EXPECT_THAT([&] { save(2); }, ThrowsMessage<Error>(HasSubstr("No space left"))) << part;
    save(3);
    EXPECT_EQ(std::filesystem::file_size(folder / (part + "3")), 8u);
  }
  std::filesystem::remove_all(folder);
}

TEST(Injector, CutsTheNetworkForATime) {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener.get(), any, size), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), any, &size), 0);
  const Descriptor sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(sender.get(), any, size), 0);
  const Descriptor receiver(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto arrives = [&](int milliseconds) {
    pollfd waiting{receiver.get(), POLLIN, 0};
    return poll(&waiting, 1, milliseconds) == 1;
  };
  const auto faults = injector({"cut-network:0.4s@step=3"});
  faults->reached(InjectPoint::step, 3);
  ASSERT_EQ(write(sender.get(), "x", 1), 1);
  EXPECT_FALSE(arrives(200));
  EXPECT_TRUE(arrives(5000));
}

}  // namespace
}  // namespace convoy
