// Where each value of a resolved configuration was written, to and from the hidden key "marks" that it keeps them in.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

using Marks = std::map<std::string, Mark>;  // by key path; "" is the whole file

// {"files": [F, …], "at": {KEY: [index into files, line, column], …}}
Json marks_to_json(const Marks& marks);
// The same, key by key; each key once.
class MarksWriter {
 public:
  void add(const std::string& key, const Mark& mark);
  Json json();  // once

 private:
  std::vector<std::string> files_;
  Json::object_t at_;
};
Marks marks_of(const Json& resolved);  // none where it keeps none

}  // namespace convoy
