// `convoy init`: looks at a data file and writes a configuration that trains a model on it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

// The part of a configuration that the data determines.
struct DataDraft {
  struct Line {
    std::string text;     // YAML, below `data:`
    std::string comment;  // "": none
  };
  std::string found;          // for people: "200 rows, 3 columns, target y: numbers"
  std::vector<Line> lines;    // lines of the section `data`
  std::string model;          // name of the default model
  std::string model_options;  // its options as YAML: "hidden: [64, 64]"; "": the defaults
  std::string model_comment;  // explains these options: "output_*: those of the target; "; "": none
  std::string optimizer = "{name: adam, lr: 1.0e-3}";
  std::string length = "epochs: 10";  // length of the training: epochs or max_steps
  int64_t batch = 64;
  std::string interval = "1 epoch";  // between evaluations
  std::string checkpoints;           // between checkpoints; "": as evaluations
};

// Reads the whole file, the targets of arrays, or the names of images. `target`: column or tensor to predict, or a file
// of targets for .npy; "" if the data needs none. Errors:
// - command_line: the target is wrong; the message lists the columns.
// - config: nothing can be learnt from the data.
// - corrupt_data: the file is malformed; the message has the line.
DataDraft inspect_data(const std::string& path, const std::string& target);

// Columns of a delimited file, or tensors of a .safetensors file, from which a target must be chosen; else empty.
std::vector<std::string> target_choices(const std::string& path);

// A text as a scalar of YAML, in quotes if YAML or convoy would read it differently.
std::string yaml_word(const std::string& text);

struct InitArguments {
  std::string data, target, model, strategy;
  std::string output;  // the file to write; "": NAME.yaml
  int ranks = 0;       // 0: not given
  bool force = false;
};

// Asks for what is missing if standard input and output are a terminal. Writes `output`, or NAME.yaml for the data file
// NAME.*, checked like by `convoy run`, and prints the command that starts it. Returns the exit code.
int init_command(InitArguments arguments);

}  // namespace convoy
