#include "launch/cli/commands.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <thread>

#include "core/control/exit_codes.h"
#include "launch/farm/monitor/run_view.h"

namespace convoy {
namespace {

constexpr double screen_every = 1, plain_every = 10;  // seconds
constexpr int rate_interval = 300;                    // milliseconds between the two readings of a rate
constexpr size_t min_table_lines = 3;                 // lines, above a log or details
constexpr size_t curve_columns = 60;

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void print(const RunView& view) {
  std::cout << view_heading(view) << '\n';
  for (const std::string& line : view_lines(view, 0, view.rows.size())) std::cout << line << '\n';
  if (!view.farm)
    for (const std::string& line : RunDetails(view.folder).lines(curve_columns)) std::cout << line << '\n';
  std::cout << std::flush;
}

// Prints the run's result after the last table.
void print_result(const RunView& view) {
  if (!view.result.empty()) std::cout << '\n' << view.result << std::flush;
}

int print_once(RunReader& reader) {
  RunView view = reader.read();
  if (!view.farm && !view.over) {
    sleep_for(rate_interval / 1000.0);
    view = reader.read();
  }
  print(view);
  if (view.over) print_result(view);
  return exit_code::done;
}

int print_until_over(RunReader& reader, double every) {
  while (true) {
    const RunView view = reader.read();
    print(view);
    if (view.over) {
      print_result(view);
      return exit_code::done;
    }
    std::cout << '\n';
    if (!std::cout) return exit_code::done;  // the reader has ended
    sleep_for(every);
  }
}

// The screen, and the chosen row.
class Viewer {
 public:
  Viewer(RunReader& reader, double every) : reader_(reader), every_(every) {}

  // Returns the signal that ended it, or 0.
  int watch() {
    Screen screen;
    while (true) {
      view_ = reader_.read();
      draw(screen);
      if (view_.over) return 0;
      const auto next = std::chrono::steady_clock::now() + std::chrono::duration<double>(every_);
      while (std::chrono::steady_clock::now() < next) {
        const std::chrono::duration<double, std::milli> left = next - std::chrono::steady_clock::now();
        const Screen::Key key = screen.wait_for_key(std::clamp(static_cast<int>(left.count()) + 1, 1, 60000));
        if (screen.signal() != 0) return screen.signal();
        if (key == Screen::Key::quit) return 0;
        if (key != Screen::Key::none) obey(key, screen.rows());
        if (key != Screen::Key::none) draw(screen);
      }
    }
  }
  const RunView& last() const { return view_; }

 private:
  // Index of the chosen row, found by name because rows move.
  size_t chosen() const {
    const auto found =
        std::find_if(view_.rows.begin(), view_.rows.end(), [this](const ViewRow& row) { return row.name == chosen_; });
    return found == view_.rows.end() ? 0 : static_cast<size_t>(found - view_.rows.begin());
  }

  void obey(Screen::Key key, size_t page) {
    if (view_.rows.empty()) return;
    const size_t at = chosen(), last = view_.rows.size() - 1;
    size_t to = at;
    if (key == Screen::Key::up) to = at > 0 ? at - 1 : 0;
    if (key == Screen::Key::down) to = std::min(at + 1, last);
    if (key == Screen::Key::page_up) to = at > page ? at - page : 0;
    if (key == Screen::Key::page_down) to = std::min(at + page, last);
    if (key == Screen::Key::log) log_ = !log_;
    chosen_ = view_.rows[to].name;
  }

  void draw(Screen& screen) {
    const size_t rows = screen.rows();
    if (rows < 4) return screen.draw({{view_heading(view_), true}});
    // Heading, column names and keys take three lines. A log or details take what the table does not need, at least
    // half.
    size_t room = rows - 3;
    if (log_ || rows >= 12) room = std::max(min_table_lines, std::min(view_.rows.size(), rows / 2 - 2));
    const size_t at = chosen();
    first_ = std::min({first_, at, view_.rows.size() > room ? view_.rows.size() - room : 0});
    if (at >= first_ + room) first_ = at - room + 1;

    std::vector<Screen::Line> lines{{view_heading(view_), true}};
    const std::vector<std::string> table = view_lines(view_, first_, room);
    for (size_t i = 0; i < table.size(); ++i) lines.push_back({table[i], i == 0, i > 0 && first_ + i - 1 == at});
    if (log_ && !view_.rows.empty()) add_log(lines, rows);
    if (!log_ && !view_.rows.empty()) add_details(lines);
    lines.resize(rows - 1);
    lines.push_back({log_ ? "q quit   up/down choose   l close the log" : "q quit   up/down choose   l its log"});
    screen.draw(lines);
  }

  void add_log(std::vector<Screen::Line>& lines, size_t rows) const {
    const size_t room = rows > lines.size() + 3 ? rows - lines.size() - 3 : 1;
    std::string path;
    const std::vector<std::string> tail = log_tail(view_.rows[chosen()].folder, room, path);
    lines.push_back({});
    lines.push_back({path.empty() ? "no log yet" : path, true});
    for (const std::string& line : tail) lines.push_back({line});
  }

  // Where the chosen run's time goes, and its curves.
  void add_details(std::vector<Screen::Line>& lines) {
    const std::string& folder = view_.rows[chosen()].folder;
    lines.push_back({});
    for (const std::string& line : details_.try_emplace(folder, folder).first->second.lines(curve_columns))
      lines.push_back({line});
  }

  RunReader& reader_;
  const double every_;
  std::map<std::string, RunDetails> details_;  // by folder
  RunView view_;
  std::string chosen_;
  size_t first_ = 0;
  bool log_ = false;
};

}  // namespace

int top_command(const TopArguments& arguments) {
  RunReader reader(arguments.folder);
  if (arguments.once) return print_once(reader);
  if (!Screen::possible()) return print_until_over(reader, arguments.every > 0 ? arguments.every : plain_every);
  Viewer viewer(reader, arguments.every > 0 ? arguments.every : screen_every);
  const int signal = viewer.watch();
  if (signal != 0) return exit_code::signal_base + signal;
  // The screen has been cleared: prints the last state.
  print(viewer.last());
  if (viewer.last().over) print_result(viewer.last());
  return exit_code::done;
}

}  // namespace convoy
