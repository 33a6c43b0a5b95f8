// A single-process LibTorch program, in the style of PyTorch's C++ example for MNIST. It trains a small network on
// Fashion-MNIST. training_loop.cpp is the same program on many ranks.
//
//   plain [--data DIR] [--epochs N] [--batch ROWS] [--double]
//
// DIR has the four files of Fashion-MNIST, unpacked: train-images-idx3-ubyte and so on.
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

struct Options {
  std::string data = "data";
  int64_t epochs = 2;
  int64_t batch = 64;
  torch::ScalarType dtype = torch::kFloat;

  Options(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0 && i + 1 < argc; };
      if (is("--data")) {
        data = argv[++i];
      } else if (is("--epochs")) {
        epochs = std::stol(argv[++i]);
      } else if (is("--batch")) {
        batch = std::stol(argv[++i]);
      } else if (std::strcmp(argv[i], "--double") == 0) {
        dtype = torch::kDouble;
      } else {
        throw std::invalid_argument(std::string("unknown argument ") + argv[i]);
      }
    }
  }
};

struct Net : torch::nn::Module {
  Net() {
    conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
    conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
    fc1 = register_module("fc1", torch::nn::Linear(320, 50));
    fc2 = register_module("fc2", torch::nn::Linear(50, 10));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));
    x = torch::relu(fc1->forward(x.flatten(1)));
    return torch::log_softmax(fc2->forward(x), 1);
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

auto dataset(const Options& options, torch::data::datasets::MNIST::Mode mode) {
  return torch::data::datasets::MNIST(options.data, mode)
      .map(torch::data::transforms::Normalize<>(0.2860, 0.3530))
      .map(torch::data::transforms::Stack<>());
}

double accuracy(Net& net, const Options& options, torch::Device device) {
  torch::NoGradGuard no_gradients;
  net.eval();
  auto loader = torch::data::make_data_loader(dataset(options, torch::data::datasets::MNIST::Mode::kTest), 1000);
  int64_t correct = 0, rows = 0;
  for (auto& batch : *loader) {
    auto output = net.forward(batch.data.to(device, options.dtype));
    correct += output.argmax(1).eq(batch.target.to(device)).sum().item<int64_t>();
    rows += batch.target.size(0);
  }
  net.train();
  return double(correct) / double(rows);
}

int main(int argc, char** argv) {
  const Options options(argc, argv);
  torch::manual_seed(1);
  const torch::Device device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;

  auto net = std::make_shared<Net>();
  net->to(device, options.dtype);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  auto train_set = dataset(options, torch::data::datasets::MNIST::Mode::kTrain);
  auto loader = torch::data::make_data_loader(train_set, options.batch);

  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (auto& batch : *loader) {
      auto output = net->forward(batch.data.to(device, options.dtype));
      auto loss = torch::nll_loss(output, batch.target.to(device));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    std::printf("epoch %ld: accuracy %.4f\n", long(epoch), accuracy(*net, options, device));
  }
}
