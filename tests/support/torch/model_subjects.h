// Small versions of the models of models/, for the equivalence table.
#pragma once
#include "tests/support/torch/equivalence.h"

namespace convoy::testing {

struct GptSizes {
  int64_t heads = 4, dim = 16, vocabulary = 12;
  bool tied = true, rows = false;
};

Subject classifier_subject();  // models/mlp: three hidden layers of sizes that 2, 3 and 4 divide, dropout
Subject ranking_subject();     // models/ncf: a positive and four negatives a row, weights, dropout, BCE
Subject ranking_subject(bool rows, int64_t users = 21);  // the same; `rows`: with sparse embeddings
Subject gpt_subject();    // tied output, learned positions, dropout on embeddings, residuals and attention's weights
Subject llama_subject();  // two queries to a key, untied output, dropout as above
Subject gpt_of(const GptSizes& sizes);
Subject convnet_subject();  // batch norm and dropout
Subject ncf_subject();      // several tensors between blocks, some that pass by and some without gradient; weights, BCE

}  // namespace convoy::testing
