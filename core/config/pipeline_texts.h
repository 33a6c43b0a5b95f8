// A file that describes several runs, taken apart: the tree of each, as its own file would have held it.
#pragma once
#include <functional>
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
  Mark mark;  // of the pipeline, in the file that lists it
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

// read_run_config of a tree.
RunConfig read_run_tree(const Node& root, const Catalogues& catalogues);

// All mistakes of a tree, where reading it tells of the first alone: reads again and again, each time without what the
// last mistake was about, until nothing is wrong, a mistake comes of what was taken out, or `most` were found.
std::vector<ConfigError> all_mistakes(Node root, const std::function<void(const Node&)>& read, size_t most = 20);

}  // namespace convoy
