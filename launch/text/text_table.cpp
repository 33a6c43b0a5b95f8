#include "launch/text/text_table.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

namespace convoy {

size_t width_of(const std::string& cell) {
  return static_cast<size_t>(
      std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string json_text(const Json& json) { return json.dump(2, ' ', true); }

std::string text_table(const std::vector<std::vector<std::string>>& lines, const std::vector<size_t>& right) {
  std::vector<size_t> widths(lines.empty() ? 0 : lines.front().size(), 0);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths.at(i) = std::max(widths.at(i), width_of(line[i]));
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string blank(widths[i] - width_of(line[i]), ' ');
      const bool to_right = std::find(right.begin(), right.end(), i) != right.end();
      text += (i == 0 ? "" : "  ") + (to_right ? blank + line[i] : line[i] + blank);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string names_text(const std::vector<std::string>& names) {
  if (names.size() <= 2) return join(names, ", ");
  return str(names.front(), " … ", names.back(), " (", names.size(), ")");
}

std::string ranges(const std::set<int>& numbers) {
  std::string text = hardware_threads_text({numbers.begin(), numbers.end()});
  std::replace(text.begin(), text.end(), '+', ',');
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

LineMerger::LineMerger(int ranks, std::chrono::milliseconds window, std::function<void(const std::string&)> print)
    : ranks_(ranks), window_(window), print_(std::move(print)) {}

void LineMerger::add(Clock::time_point now, const std::string& host, int rank, const std::string& line) {
  const std::string key = without_time(line);
  for (Pending& entry : pending_) {
    // A line that one rank repeats stays repeated.
    if (entry.key != key || !entry.ranks[host].insert(rank).second) continue;
    ++entry.count;
    while (!pending_.empty() && pending_.front().count >= ranks_) print_front();
    return;
  }
  pending_.push_back({line, key, now, {{host, {rank}}}, 1});
  while (!pending_.empty() && pending_.front().count >= ranks_) print_front();
  constexpr size_t most_pending = 1000;
  while (pending_.size() > most_pending) print_front();
}

void LineMerger::flush(Clock::time_point now) {
  while (!pending_.empty() && now - pending_.front().since >= window_) print_front();
}

void LineMerger::flush_all() {
  while (!pending_.empty()) print_front();
}

void LineMerger::drop(const std::function<bool(const std::string&)>& is_dropped) {
  pending_.erase(
      std::remove_if(pending_.begin(), pending_.end(), [&](const Pending& entry) { return is_dropped(entry.key); }),
      pending_.end());
}

void LineMerger::print_front() {
  const Pending entry = std::move(pending_.front());
  pending_.pop_front();
  std::string who;
  for (const auto& [host, numbers] : entry.ranks)
    if (!numbers.empty()) who += str(who.empty() ? "" : ",", host, ":", ranges(numbers));
  print_(str(who, " | ", entry.line));
}

}  // namespace convoy
