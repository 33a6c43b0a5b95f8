// Holds a tree against the descriptions of Option and yields typed data with every default filled in.
//
// The result's keys follow the descriptions, not the file. A component becomes {name: X, its options…, the options that
// all of its kind take…}. Failure: ConfigError at the place, with the nearest valid key or value.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/options.h"

namespace convoy {

class OptionReader {
 public:
  // `open_kinds`: names of these kinds may come from a plugin that is not loaded yet; a component whose name no
  // catalogue has is then kept as it was written.
  // `mistakes`: instead of ending with the first mistake, all of them are added there, and null stands in place of each value
  // that has one.
  OptionReader(const Catalogues& catalogues, std::set<std::string> open_kinds,
               std::vector<ConfigError>* mistakes = nullptr);

  Json read_fields(const std::vector<Option>& options, const Node& node, const std::string& path);
  void refuse_unknown_keys(const std::vector<Option>& options, const Node& node, const std::string& path);
  Json read_component(const Option& option, const Node& node, const std::string& path);

  const std::map<std::string, Mark>& marks() const { return marks_; }  // by key path, of what was written
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Json read(const Option& option, const Node& node, const std::string& path);
  Json read_value(const Option& option, const Node& node, const std::string& path);
  Json read_scalar(const Option& option, const Node& node, const std::string& path);
  Json read_text(const Option& option, const Node& node, const std::string& path);
  Json read_list(const Option& option, const Node& node, const std::string& path);
  Json read_map(const Option& option, const Node& node, const std::string& path);
  Json read_plugin_model(const Node& node, const std::string& path);
  Json fallback(const Option& option, const Node& parent, const std::string& path);
  void check_range(const Option& option, double value, const Node& node, const std::string& path) const;
  template <class Read>
  Json gathered(const Read& read);
  void remember(const std::string& path, const Mark& mark);
  void remember_all(const Node& node, const std::string& path);

  const Catalogues& catalogues_;
  std::set<std::string> open_kinds_;
  std::vector<ConfigError>* mistakes_;
  std::map<std::string, Mark> marks_;
  std::vector<std::string> warnings_;
  int in_default_ = 0;  // reading a description's own default: no marks, no ranges
  int in_renamed_ = 0;  // inside a component whose name --set replaced
};

// The type in words: "integer ≥ 1", "one of a, b", "list of reals". For messages and the reference page.
std::string type_text(const Option& option);
std::string type_with_article(const Option& option);  // "an integer, or auto"
std::string range_text(const Option& option);         // "at least 1", "above 0, at most 1", or ""

}  // namespace convoy
