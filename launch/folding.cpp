#include "launch/folding.h"

#include <cctype>

#include "core/text.h"

namespace convoy {

std::string ranges(const std::set<int>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int first = *at;
    int last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    text += str(text.empty() ? "" : ",", first, last == first ? "" : str("-", last));
  }
  return text;
}

std::string without_time(const std::string& line) {
  static const std::string shape = "dddd-dd-dd dd:dd:dd.ddd ";
  if (line.size() < shape.size()) return line;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(line[i])) != 0;
    if (shape[i] == 'd' ? !digit : line[i] != shape[i]) return line;
  }
  return line.substr(shape.size());
}

LineFolder::LineFolder(int ranks, std::chrono::milliseconds window, std::function<void(const std::string&)> print)
    : ranks_(ranks), window_(window), print_(std::move(print)) {}

void LineFolder::add(Clock::time_point now, const std::string& host, int rank, const std::string& line) {
  const std::string key = without_time(line);
  for (Held& held : held_) {
    // A rank that says it twice says it twice.
    if (held.key != key || !held.ranks[host].insert(rank).second) continue;
    ++held.count;
    while (!held_.empty() && held_.front().count >= ranks_) print_front();
    return;
  }
  held_.push_back({line, key, now, {{host, {rank}}}, 1});
  while (!held_.empty() && held_.front().count >= ranks_) print_front();
  constexpr size_t most_held = 1000;
  while (held_.size() > most_held) print_front();
}

void LineFolder::flush(Clock::time_point now) {
  while (!held_.empty() && now - held_.front().since >= window_) print_front();
}

void LineFolder::flush_all() {
  while (!held_.empty()) print_front();
}

void LineFolder::print_front() {
  const Held held = std::move(held_.front());
  held_.pop_front();
  std::string who;
  for (const auto& [host, numbers] : held.ranks)
    if (!numbers.empty()) who += str(who.empty() ? "" : ",", host, ":", ranges(numbers));
  print_(str(who, " | ", held.line));
}

}  // namespace convoy
