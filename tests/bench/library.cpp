// Step times of programs that use the library, for tests/bench/ddp.py, fsdp.py and images.py:
//
//   convoy run --ranks 2 -- build/tests/bench/library mlp STEPS WARM RESULT
//   convoy run --ranks 2 -- build/tests/bench/library gpt STEPS WARM RESULT TEXT
//   convoy run --ranks 1 -- build/tests/bench/library text STEPS WARM RESULT TEXT
//
// mlp: the MLP of configs/mlp_25m.yaml through Replicas with torch::optim::SGD, 64 rows a rank. gpt: the GPT of
// configs/gpt_fsdp.yaml, written with torch::nn, through Shards with convoy's AdamW, 16 rows in all. text: batches of
// 64 sequences of 1,024 bytes. Rank 0 writes the seconds of a step to RESULT as JSON.
#include <convoy/job.h>
#include <convoy/replicas.h>
#include <convoy/run.h>
#include <convoy/shards.h>

#include <ATen/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>

namespace {

namespace nn = torch::nn;
constexpr int64_t gpt_layers = 4, gpt_heads = 8, gpt_dim = 256, gpt_length = 128, gpt_vocabulary = 256;
constexpr double gpt_dropout = 0.1;

// Returns the seconds of a step, after `warm` steps.
double timed(int steps, int warm, const std::function<void(int)>& step) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin;
  for (int number = 0; number < warm + steps; ++number) {
    if (number == warm) begin = Clock::now();
    step(number);
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / steps;
}

at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum);
}

double mlp_step(convoy::Job& job, int steps, int warm) {
  constexpr int64_t rows = 64;
  nn::Sequential net;
  const std::vector<int64_t> sizes{1024, 3072, 3072, 3072, 1024, 10};
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    net->push_back(nn::Linear(sizes[i], sizes[i + 1]));
    if (i + 2 < sizes.size()) net->push_back(nn::ReLU());
  }
  torch::optim::SGD sgd(net->parameters(), 1e-4);
  convoy::Replicas replicas(job, *net, sgd);
  const at::Tensor data = at::randn({64 * rows, sizes.front()}),
                   target = at::randint(sizes.back(), {64 * rows}, at::kLong);
  return timed(steps, warm, [&](int number) {
    const int64_t begin = number % 64 * rows;
    const at::Tensor input = data.narrow(0, begin, rows);
    replicas.step(loss_sum(net->forward(input), target.narrow(0, begin, rows)), rows);
  });
}

struct Embedding : nn::Module {
  Embedding()
      : tokens(register_module("tokens", nn::Embedding(gpt_vocabulary, gpt_dim))),
        positions(register_parameter("positions", at::randn({gpt_length, gpt_dim}) * 0.02)),
        dropout(register_module("dropout", nn::Dropout(gpt_dropout))) {}
  at::Tensor forward(const at::Tensor& ids) { return dropout->forward(tokens->forward(ids) + positions); }
  nn::Embedding tokens;
  at::Tensor positions;
  nn::Dropout dropout;
};

struct Transformer : nn::Module {
  Transformer()
      : attention_norm(register_module("attention_norm", nn::LayerNorm(std::vector<int64_t>{gpt_dim}))),
        mlp_norm(register_module("mlp_norm", nn::LayerNorm(std::vector<int64_t>{gpt_dim}))),
        qkv(register_module("qkv", nn::Linear(gpt_dim, 3 * gpt_dim))),
        projection(register_module("projection", nn::Linear(gpt_dim, gpt_dim))),
        up(register_module("up", nn::Linear(gpt_dim, 4 * gpt_dim))),
        down(register_module("down", nn::Linear(4 * gpt_dim, gpt_dim))),
        dropout(register_module("dropout", nn::Dropout(gpt_dropout))) {}
  at::Tensor forward(at::Tensor h) {
    const int64_t rows = h.size(0), length = h.size(1);
    const at::Tensor fused = qkv->forward(attention_norm->forward(h))
                                 .view({rows, length, 3, gpt_heads, gpt_dim / gpt_heads})
                                 .permute({2, 0, 3, 1, 4});
    const at::Tensor attended = at::scaled_dot_product_attention(fused[0], fused[1], fused[2], {}, 0.0, true)
                                    .transpose(1, 2)
                                    .reshape({rows, length, gpt_dim});
    h = h + dropout->forward(projection->forward(attended));
    return h + dropout->forward(down->forward(at::gelu(up->forward(mlp_norm->forward(h)))));
  }
  nn::LayerNorm attention_norm, mlp_norm;
  nn::Linear qkv, projection, up, down;
  nn::Dropout dropout;
};

// The output uses the embedding's weight.
struct Output : nn::Module {
  explicit Output(const at::Tensor& tied)
      : norm(register_module("norm", nn::LayerNorm(std::vector<int64_t>{gpt_dim}))),
        weight(register_parameter("weight", tied)) {}
  at::Tensor forward(const at::Tensor& h) { return at::linear(norm->forward(h), weight); }
  nn::LayerNorm norm;
  at::Tensor weight;
};

double gpt_step(convoy::Job& job, int steps, int warm, const std::string& path) {
  const int64_t rows = 16 / job.size();
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  TORCH_CHECK(int64_t(bytes.size()) > 2 * gpt_length, "no text in ", path, "; ./quickstart fetches it");
  const at::Tensor text = at::from_blob(const_cast<char*>(bytes.data()), {int64_t(bytes.size())}, at::kByte);
  const auto embedding = std::make_shared<Embedding>();
  nn::Sequential net;
  net->push_back("embedding", embedding);
  for (int64_t layer = 0; layer < gpt_layers; ++layer) net->push_back("block" + std::to_string(layer), Transformer());
  net->push_back("output", Output(embedding->tokens->weight));
  {
    at::NoGradGuard no_grad;
    for (auto& entry : net->named_parameters())
      if (entry.value().dim() > 1) entry.value().normal_(0, 0.02);
  }
  convoy::FusedOptimizer adamw("adamw", 1e-3);
  adamw.weight_decay = 0.1;
  adamw.groups = {{"bias|norm", {}, 0.0}};
  convoy::ShardOptions options;
  options.clip_norm = 1;
  convoy::Shards shards(job, *net, adamw, options);
  const at::Tensor positions = at::arange(gpt_length + 1);
  return timed(steps, warm, [&](int number) {
    const double rate = 0.1 + 0.45 * (1 + std::cos(3.14159265358979 * (number + 1) / (steps + warm)));
    shards.set_learning_rate(1e-3 * std::min(1.0, (number + 1) / 20.0) * rate);
    const at::Tensor at = at::randint(int64_t(bytes.size()) - gpt_length - 1, {rows, 1}, at::kLong) + positions;
    const at::Tensor sequences = text.index({at}).to(at::kLong);
    const at::Tensor logits = shards.forward(sequences.narrow(1, 0, gpt_length));
    const at::Tensor target = sequences.narrow(1, 1, gpt_length).reshape({-1});
    shards.step(loss_sum(logits.flatten(0, 1), target), rows * gpt_length);
  });
}

// The model has one weight: the loader sets the pace.
double text_step(convoy::Job& job, int steps, int warm, const std::string& path) {
  constexpr int64_t rows = 64, length = 1024;
  nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 1e-4);
  convoy::Replicas replicas(job, *net, sgd);
  convoy::Run run = job.resume("runs/text", replicas);
  convoy::ShareOptions options;
  options.epochs = 0;
  options.max_steps = warm + steps;
  options.batch_size = rows;
  options.checkpoint_every = convoy::Every::never();
  auto share = run.share("text", {{"path", path}, {"length", std::to_string(length)}}, options);
  auto batch = share.begin();
  const at::Tensor one = at::ones({1, 1});
  return timed(steps, warm, [&](int) {
    replicas.step(net->forward(one).sum(), double(batch->rows));
    ++batch;
  });
}

}  // namespace

int main(int argc, char** argv) {
  convoy::Job job(argc, argv);
  const std::vector<std::string>& words = job.arguments();
  TORCH_CHECK(words.size() >= 5, "usage: library mlp|gpt|text STEPS WARM RESULT [TEXT]");
  const int steps = std::stoi(words[2]), warm = std::stoi(words[3]);
  const double seconds = words[1] == "mlp"   ? mlp_step(job, steps, warm)
                         : words[1] == "gpt" ? gpt_step(job, steps, warm, words.at(5))
                                             : text_step(job, steps, warm, words.at(5));
  if (job.rank() == 0) std::ofstream(words[4]) << "{\"step_seconds\": " << seconds << "}\n";
}
