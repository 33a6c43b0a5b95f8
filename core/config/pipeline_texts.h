// A file that describes several runs, taken apart: the tree of each, as its own file would have held it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/farm.h"

namespace convoy {

struct PipelineText {
  std::string name;
  Node config;  // a whole run's, to be read strictly; its marks are those of the file each key stands in
  QueueTerms terms;
  Mark mark;            // of the pipeline, in the file that lists it
  Json grid = nullptr;  // of a point of a grid: its values by key path
};

struct PipelineTexts {
  std::vector<PipelineText> pipelines;
  Farm farm;                          // all but its pipelines
  std::vector<ConfigError> mistakes;  // every one that was found; then nothing may start
};

// `over` laid on `base`: maps are merged key by key, anything else is replaced, and so is a component that gets another
// name.
Node merged(const Node& base, const Node& over);
// Puts `value` at a key path such as "train.batch.global", made where it is not there; items of lists count from 0.
// ConfigError at the value's mark where the path cannot be followed.
void put_at(Node& root, const std::string& path, const Node& value);

// The grid with key paths instead of maps: {optimizer: {lr: [1, 2]}} is {optimizer.lr: [1, 2]}. What --set gives
// replaces what the file has. `twice`: keys that the file itself gives twice.
Node flat_grid(const Node& grid, std::vector<Node::Field>& twice);

// Whether anything in the tree stands in this file; of --set, whether it has the value of that assignment (Mark::file).
bool holds_text_of(const Node& node, const std::string& file);
bool is_typed(const Mark& mark);  // came by --set

// read_run_config of a tree.
RunConfig read_run_tree(const Node& root, const Catalogues& catalogues);

// All mistakes of a tree. `read` reads it, adds the mistakes that it meets to the list or throws one, and looks at what
// several values are together only where it met none: so it is called again without the values that were wrong, until
// nothing new comes of it. A mistake that may come of what was taken out is none.
using ReadTree = std::function<void(const Node&, std::vector<ConfigError>& mistakes)>;
std::vector<ConfigError> all_mistakes(Node root, const ReadTree& read);

// Reads many trees that have most of their values in common: each top-level value is read and checked once, however many
// trees hold it. Threads: one.
class RunTreesReader {
 public:
  explicit RunTreesReader(const Catalogues& catalogues);
  ~RunTreesReader();
  RunTreesReader(const RunTreesReader&) = delete;
  RunTreesReader& operator=(const RunTreesReader&) = delete;

  // RunConfig::resolved of the tree; null where anything of it is wrong.
  Json read(const Node& root);
  // Of all trees read so far, each once.
  const std::vector<ConfigError>& mistakes() const;

 private:
  struct Inner;
  std::unique_ptr<Inner> inner_;
};

}  // namespace convoy
