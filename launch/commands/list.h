// `convoy list [--markdown] [KIND [NAME]]`: what a configuration may hold, from the descriptions that also check it.
#pragma once
#include <iosfwd>
#include <string>

#include "core/config/run_config.h"

namespace convoy {

struct ListRequest {
  std::string kind;       // "": all kinds, names only; "config": the keys of the file; else a kind of the catalogues
  std::string name;       // "": all names of the kind
  bool markdown = false;  // the whole reference page, docs/config.md; kind and name are then empty
};

// Writes to `out`. Throws Error(command_line) with the nearest valid kind or name.
void list_catalogues(const Catalogues& catalogues, const ListRequest& request, std::ostream& out);

}  // namespace convoy
