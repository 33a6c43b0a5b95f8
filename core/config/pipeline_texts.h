// A file that describes several runs, taken apart: the tree of each, as its own file would have held it.
#pragma once
#include <string>
#include <vector>

#include "core/config/node.h"
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
// The value at a key path such as "train.batch.global", made where it is not there, replaced by `value`.
void put_at(Node& root, const std::string& path, const Node& value);

}  // namespace convoy
