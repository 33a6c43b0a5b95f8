// Reads tables from CSV with declared columns, and from arrays (.npy, safetensors), which are memory-mapped.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/data/formats/input_files.h"
#include "core/data/preparation.h"

namespace convoy {

struct TableOptions {
  std::string target_path;  // a .npy with targets
  char delimiter = ',';
  bool header = true;
  std::vector<std::string> features;  // CSV: columns, empty: all others; safetensors: the tensor's name
  std::string target = "target";
  std::string weight;  // "": none
  bool classification = true;
  PreparationOptions prepare;

  static TableOptions from(const Options& options);
};

// Names of the classes, columns and categories of a table from CSV.
struct TableNames {
  std::vector<std::string> labels;   // classification: sorted class names by number
  std::vector<std::string> columns;  // names of the features, in order
  std::vector<ColumnWords> words;    // by column; empty: numbers. No list at all: no column has words
};

struct TableData : TableNames {
  at::Tensor features;              // [N, …], any dtype of numbers; words by their numbers, NaN: missing
  at::Tensor target;                // [N] int64 indices into `labels`, else the numbers themselves
  at::Tensor weight;                // [N]; undefined: all one
  std::string fingerprint;          // CSV: of the files
  std::vector<MappedFile> sources;  // arrays: the files; hashed when the fingerprint is needed

  int64_t rows() const { return features.size(0); }
};

// Reads by the extension of `path`, which may be a pattern of several files (core/data/formats/input_files.h): their
// rows follow each other, in the order of the first file's columns. Throws Error(corrupt_data) with file:line:column,
// Error(io), Error(config).
TableData read_table(const std::string& path, const TableOptions& options);
// Converts classes, columns and words to the numbers and the order of `names`. Error(corrupt_data) names `path` and
// the name that is unknown there.
void number_as(TableData& data, const TableNames& names, const std::string& path);
// One table of the tables of several files. These two are in joined_files.cpp.
TableData joined_tables(std::vector<TableData> parts, const std::vector<std::string>& paths);
TableData read_table_csv(const std::string& path, const TableOptions& options);

// Reads NumPy's .npy files, memory-mapped. Returns a read-only view that keeps the mapping alive. Takes little-endian
// numbers in C order; else Error(corrupt_data) with the Python call that converts the file. Never runs code: arrays of
// objects are refused.
at::Tensor read_npy(const std::string& path);

}  // namespace convoy
