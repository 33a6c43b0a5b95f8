// Lines that several ranks write alike become one: "host:0-3 | line". Pure: time is passed in.
#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace convoy {

class LineFolder {
 public:
  using Clock = std::chrono::steady_clock;
  // `ranks`: how many may say the same. A line is held until all have, or for `window`.
  LineFolder(int ranks, std::chrono::milliseconds window, std::function<void(const std::string&)> print);

  void add(Clock::time_point now, const std::string& host, int rank, const std::string& line);
  void flush(Clock::time_point now);  // prints what was held long enough
  void flush_all();
  bool holding() const { return !held_.empty(); }

 private:
  struct Held {
    std::string line, key;
    Clock::time_point since;
    std::map<std::string, std::set<int>> ranks;  // by host
    int count = 0;
  };
  void print_front();

  int ranks_;
  std::chrono::milliseconds window_;
  std::function<void(const std::string&)> print_;
  std::deque<Held> held_;
};

// "0-3,5"
std::string ranges(const std::set<int>& numbers);
// Without the date and time that our own log puts in front.
std::string without_time(const std::string& line);

}  // namespace convoy
