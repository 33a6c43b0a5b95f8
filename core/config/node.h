// YAML as read: a tree of texts that remembers where each one stands. Nothing has a type yet; options give it one.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/options.h"

namespace convoy {

struct Node {
  enum class Kind { null, scalar, list, map };
  struct Field;

  Kind kind = Kind::null;
  std::string text;         // of a scalar
  bool quoted = false;      // then it is text and never a number or a boolean
  bool overridden = false;  // it, or something below it, came by --set
  bool renamed = false;     // a scalar by --set that replaced another one of the file
  Mark mark;
  std::vector<Node> items;    // of a list
  std::vector<Field> fields;  // of a map, in the order written; keys are unique

  Node* find(const std::string& key);
  const Node* find(const std::string& key) const;
};

struct Node::Field {
  std::string key;
  Mark mark;  // of the key
  Node value;
};

Node scalar_node(const std::string& text, const Mark& mark, bool quoted = false);
Node map_node(const Mark& mark);

// The value of a node that no description gives a type to: plain scalars that read as a boolean, integer or finite real
// become one, all else text. With `keep_spelling` only numbers that are written back as they were found become one, so
// that a text such as 1.10 stays what it was.
Json untyped(const Node& node, bool keep_spelling);

// The way back, for defaults and for resolved data; `marks` by key path tell where things stood.
Node node_of(const Json& value, const std::map<std::string, Mark>& marks, const std::string& path = "");

}  // namespace convoy
