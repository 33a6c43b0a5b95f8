// Trees of texts, to and from untyped data.
#include "core/config/node.h"

#include "core/config/scalars.h"

namespace convoy {
namespace {

Json untyped_scalar(const std::string& text, bool keep_spelling) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (auto number = parse_integer(text).value) return *number;
  if (auto number = parse_real(text).value) {
    const Json json = *number;
    if (!keep_spelling || json.dump() == text) return json;
  }
  return text;
}

bool is_null_word(const std::string& text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

// The nearest mark at or above a key path.
Mark mark_at(const std::map<std::string, Mark>& marks, std::string path) {
  while (true) {
    auto found = marks.find(path);
    if (found != marks.end()) return found->second;
    if (path.empty()) return Mark{};
    const size_t dot = path.rfind('.');
    path = dot == std::string::npos ? "" : path.substr(0, dot);
  }
}

}  // namespace

Node* Node::find(const std::string& key) {
  for (Field& field : fields) {
    if (field.key == key) return &field.value;
  }
  return nullptr;
}

const Node* Node::find(const std::string& key) const { return const_cast<Node*>(this)->find(key); }

Node scalar_node(const std::string& text, const Mark& mark, bool quoted) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  node.quoted = quoted;
  node.mark = mark;
  return node;
}

Node map_node(const Mark& mark) {
  Node node;
  node.kind = Node::Kind::map;
  node.mark = mark;
  return node;
}

Json untyped(const Node& node, bool keep_spelling) {
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::scalar:
      return node.quoted ? Json(node.text) : untyped_scalar(node.text, keep_spelling);
    case Node::Kind::list: {
      Json list = Json::array();
      for (const Node& item : node.items) list.push_back(untyped(item, keep_spelling));
      return list;
    }
    case Node::Kind::map:
      break;
  }
  Json map = Json::object();
  for (const Node::Field& field : node.fields) map[field.key] = untyped(field.value, keep_spelling);
  return map;
}

Node node_of(const Json& value, const std::map<std::string, Mark>& marks, const std::string& path) {
  const Mark mark = mark_at(marks, path);
  const std::string prefix = path.empty() ? "" : path + ".";
  if (value.is_object() && !is_interval(value)) {
    Node map = map_node(mark);
    for (const auto& entry : value.items()) {
      const std::string below = prefix + entry.key();
      map.fields.push_back({entry.key(), mark_at(marks, below), node_of(entry.value(), marks, below)});
    }
    return map;
  }
  if (value.is_array()) {
    Node list;
    list.kind = Node::Kind::list;
    list.mark = mark;
    for (size_t i = 0; i < value.size(); ++i) {
      list.items.push_back(node_of(value[i], marks, str(prefix, i)));
    }
    return list;
  }
  if (value.is_null()) {
    Node null;
    null.mark = mark;
    return null;
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    // A number that kept its spelling is plain again; what would become something else was in quotes.
    const bool quoted = is_null_word(text) || !untyped_scalar(text, true).is_string();
    return scalar_node(text, mark, quoted);
  }
  return scalar_node(value.is_object() ? interval_text(value) : value.dump(), mark);
}

}  // namespace convoy
