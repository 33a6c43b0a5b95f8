// gpt: a decoder-only transformer with its norms before attention and MLP (Radford et al., "Language models are
// unsupervised multitask learners", 2019).
//
//   tokens [.., B, T] → embedding (+ learned positions) → blocks → norm → logits [.., B, T, vocabulary]
//
// Every token predicts the next one: the loss counts B·T of them, a row is a sequence and is never split.
// Blocks: "embedding"; "blocks.0", …; "output". Needs the fields "tokens" [T] and "target" [T], both with a cardinality;
// takes "weight" per row or per token. The vocabulary and the longest sequence are the data's.
#pragma once
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/options.h"

namespace convoy {
ModelPtr make_gpt(const Options& options, const Schema& schema);
}  // namespace convoy
