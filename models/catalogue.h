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

}  // namespace convoy
