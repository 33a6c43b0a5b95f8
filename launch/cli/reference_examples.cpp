// Examples of the reference page. A test reads each of them in place of the same keys of a complete file.
#include "launch/cli/commands.h"

namespace convoy {

const std::map<std::string, std::string>& reference_examples() {
  static const std::map<std::string, std::string> examples{
      {"file", R"(name: digits
seed: 1
device: cpu
model: {name: mlp, hidden: [64, 64]}
data: {name: fashion_mnist}
optimizer: {name: adam, lr: 1.0e-3}
strategy: ddp
train:
  epochs: 2
  batch: {global: 128}
  evaluate_every: 1 epoch
  checkpoint_every: 500 steps
launch: {ranks: 2, collective: 5 min}
)"},

      {"backend: local", "backend: local\n"},
      {"backend: gloo", "backend: gloo\n"},
      {"backend: mpi", "backend: mpi\n"},
      {"backend: nccl", "backend: nccl\ndevice: cuda\n"},

      {"data: fashion_mnist", "data: {name: fashion_mnist, bytes: true}\n"},
      {"data: images", "data: {name: images, path: pictures, height: 64, width: 64, transforms: [{name: flip}]}\n"},
      {"data: interactions", R"(data:
  name: interactions
  path: clicks.csv
  columns: {user: visitor, item: page, time: at, context: [hour]}
  negatives: 4
)"},
      {"data: synthetic", "data: {name: synthetic, rows: 1000, features: [16], classes: 4}\n"},
      {"data: table", "data: {name: table, path: leaves.csv, target: species, evaluate: {fraction: 0.2}}\n"},
      {"data: text", "data: {name: text, path: my.txt, length: 64}\n"},

      {"loss: bce", "loss: {name: bce, label_smoothing: 0.1}\n"},
      {"loss: bpr", "loss: bpr\n"},
      {"loss: cross_entropy", "loss: {name: cross_entropy, ignore: 0}\n"},
      {"loss: mse", "loss: mse\n"},

      {"model: convnet", "model: {name: convnet, channels: [32, 64], hidden: 128}\n"},
      {"model: gpt", "model: {name: gpt, layers: 4, heads: 8, dim: 256, positions: rotary}\n"},
      {"model: llama", "model: {name: llama, layers: 4, heads: 8, kv_heads: 4, dim: 256}\n"},
      {"model: mlp", "model: {name: mlp, hidden: [64, 64], activation: gelu, dropout: 0.1}\n"},
      {"model: ncf", "model: {name: ncf, gmf_dim: 8, mlp_dim: 32, hidden: [32, 16, 8], rows: true}\n"},
      {"model: resnet", "model: {name: resnet, shape: cifar, depth: 20}\n"},

      {"optimizer: adagrad", "optimizer: {name: adagrad, lr: 1.0e-2}\n"},
      {"optimizer: adam", "optimizer: {name: adam, lr: 1.0e-3, betas: [0.9, 0.99]}\n"},
      {"optimizer: adamw", R"(optimizer:
  name: adamw
  lr: 3.0e-4
  weight_decay: 0.1
  clip_norm: 1
  groups: [{match: bias, weight_decay: 0}]
)"},
      {"optimizer: sgd", "optimizer: {name: sgd, lr: 0.1, momentum: 0.9, nesterov: true}\n"},

      {"schedule: constant", "optimizer: {name: sgd, lr: 0.1, schedule: {name: constant, warmup: 100 steps}}\n"},
      {"schedule: cosine", "optimizer: {name: sgd, lr: 0.1, schedule: {name: cosine, warmup: 1 epoch, final: 0.1}}\n"},
      {"schedule: linear", "optimizer: {name: sgd, lr: 0.1, schedule: linear}\n"},
      {"schedule: step", "optimizer: {name: sgd, lr: 0.1, schedule: {name: step, every: 2 epochs, factor: 0.5}}\n"},

      {"strategy: data_parallel", "strategy: {name: data_parallel, devices: [\"cores:0\", \"cores:1\"]}\n"},
      {"strategy: ddp", R"(strategy:
  name: ddp
  sync: {what: parameters, every: 8}
)"},
      {"strategy: ensemble", R"(strategy:
  name: ensemble
  members: 10
  samples: bootstrap
  lr: {from: 1.0e-4, to: 1.0e-2, scale: log}
)"},
      {"strategy: fsdp", "strategy: {name: fsdp, shard: parameters, recompute: blocks}\n"},
      {"strategy: hybrid",
       "strategy: {name: hybrid, mesh: {data: {degree: 2, how: fsdp}, pipeline: 2}, micro_batches: 4}\n"},
      {"strategy: independent", R"(strategy:
  name: independent
  cores: 1
  grid: {optimizer.lr: [1.0e-3, 1.0e-2], seed: [1, 2]}
  names: "lr{optimizer.lr}-seed{seed}"
  metric: accuracy
)"},
      {"strategy: model_parallel",
       "strategy: {name: model_parallel, devices: [\"cuda:0\", \"cuda:1\"], micro_batches: 4}\n"},
      {"strategy: pipeline", "strategy: {name: pipeline, schedule: 1f1b, micro_batches: 8}\nlaunch: {ranks: 2}\n"},
      {"strategy: single", "strategy: {name: single, micro_batches: 4}\n"},
      {"strategy: tensor_parallel", "strategy: tensor_parallel\nlaunch: {ranks: 2}\n"},

      {"transform: flip", "data: {name: fashion_mnist, transforms: [{name: flip, p: 0.5}]}\n"},
      {"transform: noise", "data: {name: fashion_mnist, transforms: [{name: noise, deviation: 0.1}]}\n"},
      {"transform: normalise",
       "data: {name: fashion_mnist, transforms: [{name: normalise, mean: [0.286], deviation: [0.353]}]}\n"},
      {"transform: shift", "data: {name: fashion_mnist, transforms: [{name: shift, pixels: 2}]}\n"},
  };
  return examples;
}

}  // namespace convoy
