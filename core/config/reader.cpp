// Builds a tree of texts from yaml-cpp's events.
#include "core/config/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>
#include <utility>

#include "core/files/limits.h"

namespace convoy {
namespace {

// Converts byte positions of yaml-cpp (from 0) to lines and columns in characters (from 1).
class SourceLocator {
 public:
  SourceLocator(const std::string& text, SourceLocation fixed) : text_(text), fixed_(std::move(fixed)) {
    starts_.push_back(0);
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\n') starts_.push_back(i + 1);
  }

  SourceLocation at(const YAML::Mark& mark) const {
    if (fixed_.line == 0 || mark.is_null()) return fixed_;
    const size_t position = std::min(static_cast<size_t>(std::max(mark.pos, 0)), text_.size());
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
    const auto line = static_cast<size_t>(after - starts_.begin());
    // Count from the last position, so that a long line is counted once and not once for each value.
    if (line != line_ || position < counted_) {
      line_ = line;
      counted_ = starts_[line - 1];
      column_ = 1;
    }
    for (; counted_ < position; ++counted_)
      if ((static_cast<unsigned char>(text_[counted_]) & 0xc0) != 0x80) ++column_;
    return {fixed_.file, static_cast<int>(line), column_};
  }

  // True for a tag. yaml-cpp reports `! x` like quoted text, so look for the character itself, after an anchor.
  bool tagged(const YAML::Mark& mark) const {
    size_t i = static_cast<size_t>(std::max(mark.pos, 0));
    if (i < text_.size() && text_[i] == '&') {
      i = text_.find_first_of(" \t\r\n", i);
      if (i != std::string::npos) i = text_.find_first_not_of(" \t\r\n", i);
    }
    return i != std::string::npos && i < text_.size() && text_[i] == '!';
  }

 private:
  const std::string& text_;
  SourceLocation fixed_;        // line 0: every position maps to this location
  std::vector<size_t> starts_;  // first byte of each line
  mutable size_t line_ = 0;     // end of the counted text: line, byte, column
  mutable size_t counted_ = 0;
  mutable int column_ = 1;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const SourceLocator& locator) : locator_(locator) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) fail(mark, "text after the end of the document; a configuration is one YAML document");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node;
    node.location = locator_.at(mark);
    add(mark, std::move(node), anchor, 1);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    add(mark, scalar_node(value, locator_.at(mark), tag == "!"), anchor, 1 + value.size() / 64);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "an alias inside its own anchor");
    if (open_.size() + static_cast<size_t>(found->second.depth) > static_cast<size_t>(max_config_depth)) too_deep(mark);
    count(mark, found->second.nodes);
    if (at_key()) fail(mark, "a key must be plain text, not an alias");
    attach(found->second.node, found->second.depth);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::map);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    YAML::Mark mark;
    YAML::anchor_t anchor = 0;
    size_t nodes_before = 0;
    int depth = 1;  // depth of the content
    bool has_key = false;
    std::string key;
    SourceLocation key_location;
    std::set<std::string> keys;
  };
  struct Anchored {
    Node node;
    size_t nodes = 1;
    int depth = 0;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& reason) const {
    throw ConfigError(locator_.at(mark), path(), reason);
  }

  [[noreturn]] void too_deep(const YAML::Mark& mark) const {
    // No path: it would be as long as the mistake.
    throw ConfigError(locator_.at(mark), "", "lists and maps are nested more than ", max_config_depth, " deep");
  }

  // Key path of the current value.
  std::string path() const {
    std::vector<std::string> keys;
    for (const Open& open : open_) {
      if (open.node.kind == Node::Kind::list) keys.push_back(str(open.node.items.size()));
      if (open.has_key) keys.push_back(printable(open.key));
    }
    return join(keys, ".");
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (locator_.tagged(mark) || (tag != "?" && tag != "!" && !tag.empty()))
      fail(mark, "tags (!…) have no meaning here; leave it out");
  }

  void count(const YAML::Mark& mark, size_t nodes) {
    nodes_ += nodes;
    if (nodes_ > max_config_values)
      throw ConfigError(locator_.at(mark), "", "holds more than ", max_config_values, " values, aliases expanded");
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Node::Kind kind) {
    refuse_tag(mark, tag);
    if (at_key()) fail(mark, "a key must be plain text, not a list or map; or is a bracket left open?");
    if (open_.size() >= static_cast<size_t>(max_config_depth)) too_deep(mark);
    Open opened;
    opened.node.kind = kind;
    opened.node.location = locator_.at(mark);
    opened.mark = mark;
    opened.anchor = anchor;
    opened.nodes_before = nodes_;
    open_.push_back(std::move(opened));
  }

  void close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    const int depth = closed.depth;
    count(closed.mark, 1);
    const size_t nodes = nodes_ - closed.nodes_before;
    if (closed.anchor != 0) anchors_[closed.anchor] = {closed.node, nodes, depth};
    attach(std::move(closed.node), depth);
  }

  bool at_key() const { return !open_.empty() && open_.back().node.kind == Node::Kind::map && !open_.back().has_key; }

  void add(const YAML::Mark& mark, Node node, YAML::anchor_t anchor, size_t nodes) {
    count(mark, nodes);
    if (anchor != 0) anchors_[anchor] = {node, nodes, 0};
    if (at_key()) return start_field(mark, node);
    attach(std::move(node), 0);
  }

  void start_field(const YAML::Mark& mark, const Node& key) {
    Open& map = open_.back();
    if (key.kind != Node::Kind::scalar) fail(mark, "a key must be plain text");
    if (key.text == "<<" && !key.quoted) fail(mark, "merge keys (<<) are not supported; write the keys out");
    if (!map.keys.insert(key.text).second) {
      const auto first = std::find_if(map.node.fields.begin(), map.node.fields.end(),
                                      [&](const Node::Field& field) { return field.key == key.text; });
      map.has_key = true;
      map.key = key.text;
      fail(mark,
           first->location.line == 0 ? "written twice" : str("written twice; first on line ", first->location.line));
    }
    map.has_key = true;
    map.key = key.text;
    map.key_location = locator_.at(mark);
  }

  void attach(Node node, int depth) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    parent.depth = std::max(parent.depth, depth + 1);
    if (parent.node.kind == Node::Kind::list) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    // yaml-cpp gives an omitted value the position of the next token.
    if (node.kind == Node::Kind::null && node.location.line != parent.key_location.line)
      node.location = parent.key_location;
    parent.node.fields.push_back({parent.key, parent.key_location, std::move(node)});
    parent.has_key = false;
  }

  const SourceLocator& locator_;
  Node root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  size_t nodes_ = 0;
  int documents_ = 0;
};

// Returns false if there is no document.
bool parse(const std::string& text, const SourceLocation& location, Node& root) {
  const SourceLocator locator(text, location);
  TreeBuilder builder(locator);
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(builder)) return false;
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    std::string reason = "not valid YAML: " + printable(error.msg);
    if (text.find("${") != std::string::npos && error.msg.find("flow") != std::string::npos)
      reason += "; between { } or [ ] write \"${VAR}\" in quotes";
    throw ConfigError(locator.at(error.mark), "", reason);
  }
  root = builder.take();
  return true;
}

std::string contents_of(const std::string& path) {
  const SourceLocation location{path, 0, 0};
  const auto refuse = [&](const std::string& reason) { throw ConfigError(location, "", reason); };
  // O_NONBLOCK: otherwise opening a pipe without a writer blocks for ever.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 && is_out_of_descriptors(errno)) throw Error(Failure::io, path, ": ", error_text(errno));
  if (file < 0) {
    refuse(errno == ENOENT ? "no such file; name a YAML file that describes the run"
                           : str("cannot be opened: ", std::strerror(errno)));
  }
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  std::string reason;
  std::string text;
  if (known && S_ISDIR(status.st_mode)) {
    reason = "is a directory; name a YAML file that describes the run";
  } else if (!known || !S_ISREG(status.st_mode)) {
    reason = "is not a regular file";
  } else {
    text.resize(max_config_bytes + 1);
    size_t got = 0;
    while (got < text.size()) {
      const ssize_t count = ::read(file, &text[got], text.size() - got);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) reason = str("cannot be read: ", std::strerror(errno));
      if (count <= 0) break;
      got += static_cast<size_t>(count);
    }
    text.resize(got);
  }
  ::close(file);
  if (text.size() > max_config_bytes) reason = "is larger than 1 MiB, the limit of a configuration";
  if (text.compare(0, 4, "\177ELF") == 0)
    reason = str("is a program and no YAML file; type convoy run --ranks 2 -- ",
                 shell_word(path.find('/') == std::string::npos ? "./" + path : path));
  if (!reason.empty()) refuse(reason);
  return text;
}

// --- Text checks before YAML is parsed: invalid bytes, tabs as indentation ---

void check_encoding(const std::string& text, const SourceLocation& location) {
  const auto refuse = [&](const char* reason) { throw ConfigError(location, "", reason); };
  const std::string_view view = text;
  const auto starts_with = [&](std::string_view mark) { return view.substr(0, mark.size()) == mark; };
  if (starts_with("\xef\xbb\xbf")) refuse("starts with a byte order mark; save it as UTF-8 without one");
  if (starts_with("\xff\xfe") || starts_with("\xfe\xff")) refuse("is UTF-16; save it as UTF-8");
  // UTF-16 without a byte order mark: every other byte of the first characters is NUL.
  if (text.size() >= 4 && ((text[0] == 0 && text[2] == 0) || (text[1] == 0 && text[3] == 0)))
    refuse("is UTF-16; save it as UTF-8");
}

}  // namespace

void check_source(const std::string& text, const SourceLocation& location, bool fixed) {
  check_encoding(text, location);
  int line = 1;
  int column = 1;
  const auto refuse = [&](const char* reason) {
    throw ConfigError(fixed ? location : SourceLocation{location.file, line, column}, "", reason);
  };
  bool indenting = true;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      ++line;
      column = 1;
      indenting = true;
      ++i;
      continue;
    }
    if (byte == 0) refuse("holds a NUL byte; a configuration is plain text");
    if (byte == '\t' && indenting) refuse("indents with a tab; use spaces");
    const bool return_before_newline = byte == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    if ((byte < 0x20 && byte != '\t' && !return_before_newline) || byte == 0x7f)
      refuse("holds a control character; write it as an escape in double quotes");
    if (byte != ' ' && byte != '\r') indenting = false;
    const size_t length = utf8_character(std::string_view(text).substr(i));
    if (length == 0) refuse("is not valid UTF-8; save it as UTF-8");
    i += length;
    ++column;
  }
}

Node read_yaml_text(const std::string& text, const std::string& file) {
  check_source(text, {file, 1, 1}, false);
  Node root;
  if (!parse(text, {file, 1, 1}, root)) throw ConfigError({file, 1, 1}, "", "is empty; it must describe a run");
  if (root.kind != Node::Kind::map)
    throw ConfigError(root.location, "", "the top level must be a map of keys, such as name: my-run");
  expand_environment(root);
  return root;
}

Node read_yaml_file(const std::string& path) { return read_yaml_text(contents_of(path), path); }

Node read_yaml_value(const std::string& text, const SourceLocation& location) {
  if (text.size() > max_config_bytes) throw ConfigError(location, "", "is longer than 1 MiB");
  check_source(text, location, true);
  Node root;
  root.location = location;
  parse(text, location, root);
  expand_environment(root);
  return root;
}

}  // namespace convoy
