// Draws on the whole terminal, and restores it at the end, on a signal, and while suspended. At most one object at a
// time. Threads: one.
#pragma once
#include <string>
#include <vector>

namespace convoy {

class Screen {
 public:
  // True if stdin and stdout are a terminal that supports drawing.
  static bool possible();

  Screen();  // Error(io) if the terminal does not support it: check possible() first
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Line {
    std::string text;  // UTF-8; truncated to the width of the terminal
    bool bold = false;
    bool chosen = false;
  };
  void draw(const std::vector<Line>& lines);
  size_t rows() const;  // present height of the terminal

  enum class Key { none, quit, up, down, page_up, page_down, log, resized, other };
  Key wait_for_key(int milliseconds);
  // The signal received that ends the program: SIGINT, SIGTERM, SIGHUP or SIGQUIT; 0: none.
  int signal() const;
};

}  // namespace convoy
