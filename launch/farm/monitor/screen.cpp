// Uses ncurses, which redraws only changed cells and restores the terminal on suspension.
#include "launch/farm/monitor/run_view.h"

#include <locale.h>
#include <ncurses.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"

namespace convoy {
namespace {

constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

volatile sig_atomic_t came = 0;
struct sigaction before[std::size(ending_signals)];

void note(int number) { came = number; }

// Installed before those of ncurses, which exit at once. A signal also ends a wait for a key.
void catch_signals() {
  came = 0;
  struct sigaction action {};
  action.sa_handler = note;
  for (size_t i = 0; i < std::size(ending_signals); ++i) {
    sigaction(ending_signals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(ending_signals[i], &action, nullptr);
  }
}

void leave_signals() {
  for (size_t i = 0; i < std::size(ending_signals); ++i) sigaction(ending_signals[i], &before[i], nullptr);
}

// Names may contain characters outside ASCII.
void choose_locale() {
  setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
}

// Number of bytes of `text` that fit into `columns`, one column per character.
int fitting(const std::string& text, int columns) {
  int used = 0;
  size_t at = 0;
  while (at < text.size() && used <= columns) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80 && ++used > columns) break;
    ++at;
  }
  return static_cast<int>(at);
}

}  // namespace

bool Screen::possible() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && terminal != nullptr &&
         std::strcmp(terminal, "dumb") != 0 && *terminal != '\0';
}

Screen::Screen() {
  choose_locale();
  catch_signals();
  if (newterm(nullptr, stdout, stdin) == nullptr) {
    leave_signals();
    throw Error(Failure::io, "this terminal (TERM=", std::getenv("TERM"),
                ") has no screen; try TERM=xterm, or add --once for plain text");
  }
  cbreak();
  noecho();
  keypad(stdscr, TRUE);
  curs_set(0);
  set_escdelay(25);
}

Screen::~Screen() {
  endwin();
  leave_signals();
}

size_t Screen::rows() const { return static_cast<size_t>(LINES); }

void Screen::draw(const std::vector<Line>& lines) {
  erase();
  for (int row = 0; row < LINES && row < static_cast<int>(lines.size()); ++row) {
    const Line& line = lines[static_cast<size_t>(row)];
    const attr_t look = (line.bold ? A_BOLD : A_NORMAL) | (line.chosen ? A_REVERSE : A_NORMAL);
    attrset(look);
    mvaddnstr(row, 0, line.text.c_str(), fitting(line.text, COLS));
    attrset(A_NORMAL);
  }
  refresh();
}

Screen::Key Screen::wait_for_key(int milliseconds) {
  timeout(milliseconds);
  const int key = getch();
  if (key == 'L' - '@') clearok(curscr, TRUE);  // ctrl-L: redraws everything
  static const std::map<Key, std::vector<int>> keys{{Key::none, {ERR}},
                                                    {Key::quit, {'q', 'Q'}},
                                                    {Key::up, {KEY_UP, 'k'}},
                                                    {Key::down, {KEY_DOWN, 'j'}},
                                                    {Key::page_up, {KEY_PPAGE}},
                                                    {Key::page_down, {KEY_NPAGE, ' '}},
                                                    {Key::log, {'l', '\n', '\r', KEY_ENTER}},
                                                    {Key::resized, {KEY_RESIZE}}};
  for (const auto& [meaning, codes] : keys)
    if (std::find(codes.begin(), codes.end(), key) != codes.end()) return meaning;
  return Key::other;
}

int Screen::signal() const { return came; }

}  // namespace convoy
