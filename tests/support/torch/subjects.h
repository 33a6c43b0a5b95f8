// Small models with every property that can make layouts differ: several blocks, embeddings, rows of several instances,
// row weights, norms, dropout, tied, unused and foreign parameters.
#pragma once
#include "tests/support/torch/equivalence.h"

namespace convoy::testing {

Subject mlp_subject();      // three blocks, cross-entropy
Subject pairs_subject();    // user and item embeddings, rows of one positive and four negatives, weights, BCE
Subject norms_subject();    // layer norm, batch norm, dropout
Subject dropout_subject();  // dropout alone, twice
Subject tied_subject();     // tied output, a bare parameter, a layer that no forward uses, a foreign module
Subject foreign_subject();  // blocks with foreign modules, with a frozen parameter

}  // namespace convoy::testing
