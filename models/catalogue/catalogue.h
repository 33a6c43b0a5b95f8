// Models and their options, without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/data/catalogue/declared_schema.h"

namespace convoy {

const std::vector<Entry>& model_catalogue();

// Checks before the start that the model accepts the data set's rows; the models' constructors check the schema again.
// Throws ConfigError at the key of the data set that determines the rows, or at a key of the model if there is none.
// Ignores models and data sets of plugins.
void check_model_rows(const std::string& model, const Options& options, const Options& data,
                      const DeclaredSchema& rows);

// Throws ConfigError at the size that makes a weight or an activation larger than any memory. `row_elements`: elements
// of the data's largest tensor of a row. Returns the larger one of `row_elements` and the model's largest activation of
// a row.
double check_model_sizes(const std::string& model, const Options& options, const Options& data,
                         const DeclaredSchema& rows, double row_elements);

// Returns the hidden units of a block's MLP: mlp_dim, or its default.
int64_t gpt_mlp_dim(const Options& options);
int64_t llama_mlp_dim(const Options& options);
// Returns the heads of keys and values: kv_heads, or its default.
int64_t llama_key_heads(const Options& options);

// Entries of model_catalogue(), with their checks.

Entry convnet_entry();
Entry gpt_entry();
Entry llama_entry();
Entry mlp_entry();
Entry ncf_entry();
Entry resnet_entry();

}  // namespace convoy
