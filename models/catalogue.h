// Models and their options, without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/data/described_rows.h"
#include "core/options.h"

namespace convoy {

const std::vector<Entry>& model_catalogue();

// Which rows each model takes, asked before anything starts; the models' constructors ask the data set's schema again.
// Throws ConfigError where the model cannot take such rows: at the data set's key that decides it where there is one, else
// at the model's. Says nothing of models and data sets that plugins bring.
void check_model_rows(const std::string& model, const Options& options, const Options& data, const DescribedRows& rows);

// Throws ConfigError at the size that makes a weight or an activation larger than any memory. `row_elements`: of
// the data's largest tensor of a row. Returns that, or how many numbers the model's largest activation of a row has
// if they are more.
double check_model_sizes(const std::string& model, const Options& options, const Options& data,
                         const DescribedRows& rows, double row_elements);

}  // namespace convoy
