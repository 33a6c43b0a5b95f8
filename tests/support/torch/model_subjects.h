// The models of models/ themselves, small, as subjects of the equivalence table.
#pragma once
#include "tests/support/torch/equivalence.h"

namespace convoy::testing {

Subject gpt_subject();      // tied output, learned positions, dropout on embeddings, residuals and attention's weights
Subject convnet_subject();  // batch norm and dropout
Subject ncf_subject();      // several tensors between blocks, some that pass by and some without gradient; weights, BCE

}  // namespace convoy::testing
