// Checks a tree against the descriptions of Option and returns typed data with every default filled in.
//
// Keys of the result follow the descriptions, not the file. A component becomes {name: X, its options…, the common
// options of its kind…}. Errors: ConfigError at the source location, with the nearest valid key or value.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/config/node.h"
#include "core/config/run_config.h"

namespace convoy {

class OptionReader {
 public:
  // `open_kinds`: kinds whose names may come from a plugin that is not loaded yet. A component of such a kind with an
  // unknown name is kept as written.
  // `mistakes`: collects all mistakes, instead of throwing the first one. A wrong value then becomes null.
  OptionReader(const Catalogues& catalogues, std::set<std::string> open_kinds,
               std::vector<ConfigError>* mistakes = nullptr);

  Json read_fields(const std::vector<Option>& options, const Node& node, const std::string& path);
  void refuse_unknown_keys(const std::vector<Option>& options, const Node& node, const std::string& path);
  Json read_component(const Option& option, const Node& node, const std::string& path);

  const std::map<std::string, SourceLocation>& locations() const { return locations_; }  // by key path, of written keys
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::set<std::string>& meant() const { return meant_; }  // absent keys whose misspelt forms were found

 private:
  Json read(const Option& option, const Node& node, const std::string& path);
  Json read_value(const Option& option, const Node& node, const std::string& path);
  Json read_scalar(const Option& option, const Node& node, const std::string& path);
  Json read_text(const Option& option, const Node& node, const std::string& path);
  Json read_section(const Option& option, const Node& node, const std::string& path);
  Json read_list(const Option& option, const Node& node, const std::string& path);
  Json read_map(const Option& option, const Node& node, const std::string& path);
  Json read_plugin_model(const Node& node, const std::string& path);
  Json fallback(const Option& option, const Node& parent, const std::string& path);
  void check_range(const Option& option, double value, const Node& node, const std::string& path) const;
  template <class Read>
  Json collect_mistakes(const Read& read);
  void add_location(const std::string& path, const SourceLocation& location);
  void add_locations_below(const Node& node, const std::string& path);

  const Catalogues& catalogues_;
  std::set<std::string> open_kinds_;
  std::vector<ConfigError>* mistakes_;
  std::map<std::string, SourceLocation> locations_;
  std::vector<std::string> warnings_;
  std::set<std::string> meant_;
  int in_default_ = 0;  // reads the default of a description: no source locations, no ranges
  int in_renamed_ = 0;  // inside a component whose name --set replaced
};

// Returns the text of a type: "integer ≥ 1", "one of a, b", "list of reals". For messages and the reference page.
std::string type_text(const Option& option);
std::string type_with_article(const Option& option);  // "an integer, or auto"
std::string range_text(const Option& option);         // "at least 1", "above 0, at most 1", or ""

}  // namespace convoy
