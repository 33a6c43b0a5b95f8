// Fills the registry with the models; the only file that names their factories. Describes each model.
#pragma once

#include "core/base/options.h"
#include "core/checkpoint/weight_names.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/registry.h"

namespace convoy {

// convnet: a small convolutional network.
//
//   images [.., B, C, H, W] → (convolution, batch norm, relu, 2 × 2 maximum, dropout) … → hidden → classes [.., B, N]
//
// Blocks: "conv.0", …; "hidden" if there is one; "output". Needs the fields "features" [C, H, W] and "target", a class.
ModelPtr make_convnet(const Options& options, const Schema& schema);

// gpt: a decoder-only transformer with layer norm before attention and MLP (Radford et al., "Language models are
// unsupervised multitask learners", 2019). With activation gelu_tanh it is GPT-2.
//
//   tokens [.., B, T] → embedding (+ learned positions) → blocks → norm → logits [.., B, T, vocabulary]
//
// Every token predicts the next one: the loss counts B·T tokens. A row is a sequence and is never split.
// Blocks: "embedding"; "blocks.0", …; "output". Needs the fields "tokens" [T] and "target" [T], both with a
// cardinality; accepts "weight" per row or per token. Vocabulary and longest sequence come from the data.
ModelPtr make_gpt(const Options& options, const Schema& schema);

// llama: a decoder-only transformer with RMS norm, rotary positions, SwiGLU and grouped-query attention (Touvron et
// al., "LLaMA: open and efficient foundation language models", 2023).
//
//   tokens [.., B, T] → embedding → blocks → norm → logits [.., B, T, vocabulary]
//
// Loss, blocks and fields are those of gpt. No layer has a bias. transformer.cpp lists the parameters.
ModelPtr make_llama(const Options& options, const Schema& schema);

// mlp: features [.., B, …] → hidden layers → classes [.., B, C], or numbers [.., B, …shape of the target].
// Blocks: one per hidden layer ("hidden.0", …) and "output". Needs the fields "features" and "target". A target with a
// cardinality is a class (cross-entropy, accuracy); any other target is a number (mse).
ModelPtr make_mlp(const Options& options, const Schema& schema);

// ncf: NeuMF (He et al., "Neural collaborative filtering", WWW 2017) with context columns and features.
//
//   gmf = user_gmf ⊙ item_gmf                                    [.., B, N, gmf_dim]
//   mlp = hidden layers over (user_mlp, item_mlp, numbers)       [.., B, N, last of hidden]
//   score = linear(gmf, mlp)                                     [.., B, N], a logit
//
// N is the number of items of a row: the positive and its negatives, or the candidates of an evaluation. The numbers
// are context, user features and item features, unchanged. User, context and user features are equal for the N items,
// so they are looked up and multiplied once per row. The first layer is the sum of one product per row and one per
// item, which equals the linear layer over their concatenation. The embedding of a user (or item) is one row of one
// table: gmf_dim columns, then mlp_dim.
// Blocks: "embedding"; "hidden.0", … ; "output". Needs the fields "user", "item", "target"; accepts "context",
// "user_features", "item_features", "weight".
ModelPtr make_ncf(const Options& options, const Schema& schema);

// resnet (He et al., "Deep residual learning for image recognition", CVPR 2016).
//
//   images [.., B, C, H, W] → stem → residual blocks → mean over the image → classes [.., B, N]
//
// cifar: depth 6n + 2, three stages of n blocks with 16, 32 and 64 channels; at a change of size the shortcut takes
// every second pixel and fills new channels with zeros (the paper's option A). imagenet: four stages from 64 channels,
// blocks of two convolutions (18, 34) or bottlenecks of three (50), shortcuts projected by 1 × 1 convolutions.
// Blocks: "stem"; "blocks.0", …, one residual block each; "output". Needs "features" [C, H, W] and "target", a class.
ModelPtr make_resnet(const Options& options, const Schema& schema);
// Returns the number of residual blocks of each stage.
std::vector<int64_t> resnet_stages(const Options& options);

// Returns the names of the model's tensors in Python (models/weight_names.cpp). A plugin's model keeps its canonical
// names.
WeightNames weight_names(const std::string& model, const Options& options);

void register_models(Registry& registry);
}  // namespace convoy
