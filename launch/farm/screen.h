// The whole terminal, drawn anew at will and given back as it was: at the end, when a signal comes, while suspended.
// One at a time. Threads: one.
#pragma once
#include <string>
#include <vector>

namespace convoy {

class Screen {
 public:
  // Whether stdin and stdout are a terminal that can be drawn on.
  static bool possible();

  Screen();  // Error(io) where it cannot be: ask `possible` first
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Line {
    std::string text;  // UTF-8; what is too long is cut
    bool bold = false;
    bool chosen = false;
  };
  void draw(const std::vector<Line>& lines);
  size_t rows() const;  // of the terminal as it is now

  enum class Key { none, quit, up, down, page_up, page_down, log, resized, other };
  Key wait_for_key(int milliseconds);
  // The signal that asks the program to end, 0 while there is none: SIGINT, SIGTERM, SIGHUP or SIGQUIT.
  int signal() const;
};

}  // namespace convoy
