// Pipelines of a file that describes several runs: the tree of each, as in a separate file.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/files/farm.h"

namespace convoy {

// --- Queue options: how the user writes them, and their values as data ---

// Options of the queue. `defaults`: with default values. Otherwise an omitted option is null and keeps its earlier
// value.
std::vector<Option> queue_options(bool defaults);
// Options of a file that adds one pipeline: name, config (a file, or the keys of a whole run), and the queue options
// with defaults.
std::vector<Option> added_pipeline_options();
// Returns `options`, changed by the values of `written` (read with queue_options). Throws ConfigError at the key for
// invalid cores or GPUs.
QueueOptions with_queue_options(QueueOptions options, const Options& written);

struct PipelineText {
  std::string name;
  Node config;  // of a whole run, to be read strictly; each mark names the file of its key
  QueueOptions options;
  SourceLocation mark;  // of the pipeline, in the file that lists it
  Json grid = nullptr;  // values by key path, for a point of a grid
};

struct PipelineTexts {
  std::vector<PipelineText> pipelines;
  Farm farm;                          // everything except its pipelines
  std::vector<ConfigError> mistakes;  // all mistakes; if there are any, nothing starts
};

// Merges `over` into `base`: maps key by key; other values are replaced. A component with another name is replaced as
// a whole.
Node merged(const Node& base, const Node& over);
// Sets `value` at a key path such as "train.batch.global"; creates missing maps. Items of lists count from 0. Throws
// ConfigError at the value's mark for an invalid path.
void put_at(Node& root, const std::string& path, const Node& value);

// The grid with key paths instead of maps: {optimizer: {lr: [1, 2]}} becomes {optimizer.lr: [1, 2]}. Values from
// --set replace those of the file. `twice`: keys that the file contains twice.
Node flat_grid(const Node& grid, std::vector<Node::Field>& twice);

// True if a node of the tree comes from this file. For --set: if it has the value of that assignment
// (SourceLocation::file).
bool holds_text_of(const Node& node, const std::string& file);
bool is_typed(const SourceLocation& mark);  // from --set

// Reads the tree of one run, as read_run_config does.
RunConfig read_run_tree(const Node& root, const Catalogues& catalogues);

// Throws one error that lists all mistakes, if there are any; a single one is thrown as it is.
void refuse_all(const std::vector<ConfigError>& mistakes);

// Returns all mistakes of a tree. `read` reads it, and adds its mistakes to the list or throws one. It checks
// combinations of values only if single values have no mistakes. So it is called again without the wrong values,
// until it finds no new mistake. Mistakes that removed values may have caused are dropped.
using ReadTree = std::function<void(const Node&, std::vector<ConfigError>& mistakes)>;
std::vector<ConfigError> all_mistakes(Node root, const ReadTree& read);

// Reads many trees that have most of their values in common: reads and checks each distinct top-level value once. One
// thread.
class RunTreesReader {
 public:
  explicit RunTreesReader(const Catalogues& catalogues);
  ~RunTreesReader();
  RunTreesReader(const RunTreesReader&) = delete;
  RunTreesReader& operator=(const RunTreesReader&) = delete;

  // Returns RunConfig::resolved of the tree; null if it has a mistake.
  Json read(const Node& root);
  // Mistakes of all trees so far, each once.
  const std::vector<ConfigError>& mistakes() const;

  struct Inner;

 private:
  std::unique_ptr<Inner> inner_;
};

}  // namespace convoy
