#include "launch/orphan_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "launch/sweep.h"

namespace convoy {
namespace {

constexpr char orderly[] = "end";
constexpr int others_first = 700;  // milliseconds: mpirun removes its session folder, ranks write their last words
constexpr int rounds = 50;         // what is killed may have started another meanwhile

using Marks = std::vector<std::string>;  // "NAME=value", all of which an environment has

bool has_all(const std::string& environment, const Marks& marks) {
  const std::string entries = '\0' + environment;
  return std::all_of(marks.begin(), marks.end(),
                     [&](const std::string& mark) { return entries.find('\0' + mark + '\0') != std::string::npos; });
}

// All living processes that bear the marks of one of `watched`.
std::vector<pid_t> marked(const std::vector<Marks>& watched) {
  std::vector<pid_t> found;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == getpid()) continue;
    std::ifstream file(std::string("/proc/") + entry->d_name + "/environ");  // a zombie's is empty
    const std::string environment((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (std::none_of(watched.begin(), watched.end(), [&](const Marks& marks) { return has_all(environment, marks); }))
      continue;
    found.push_back(pid);
  }
  closedir(folder);
  return found;
}

bool kill_marked(const std::vector<Marks>& watched) {
  const std::vector<pid_t> living = marked(watched);
  for (const pid_t pid : living) kill(pid, SIGKILL);
  return !living.empty();
}

std::vector<Marks> parse(const std::string& told) {
  std::vector<Marks> watched;
  std::istringstream lines(told);
  for (std::string line; std::getline(lines, line);) {
    Marks marks;
    std::istringstream words(line);
    for (std::string word; words >> word;) marks.push_back(word);
    if (!marks.empty()) watched.push_back(std::move(marks));
  }
  return watched;
}

[[noreturn]] void guard(int told_pipe) {
  setsid();  // what ends convoy's group or terminal must not end this
  prctl(PR_SET_NAME, "convoy-guard");
  dup2(told_pipe, STDIN_FILENO);
  closefrom(STDIN_FILENO + 1);  // the folder's lock and the console among them
  std::string told;
  char bytes[4096];
  for (ssize_t got; (got = read(STDIN_FILENO, bytes, sizeof bytes)) != 0;) {
    if (got > 0) told.append(bytes, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  const std::vector<Marks> watched = parse(told);
  if (watched.empty() || watched.back().front() == orderly) _exit(0);
  const std::vector<pid_t> there = marked(watched);
  poll(nullptr, 0, others_first);
  for (int i = 0; i < rounds && kill_marked(watched); ++i) poll(nullptr, 0, 20);
  for (const pid_t pid : there) sweep_session(pid);  // an mpirun among them may have had no time to remove its own
  _exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0]);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

OrphanGuard::~OrphanGuard() {
  tell(orderly);
  if (pipe_ >= 0) close(pipe_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void OrphanGuard::watch(const Variables& environment) {
  std::string line;
  for (const char* name : {"CONVOY_CHANNEL", "CONVOY_PROCESS"}) {
    const auto found = environment.find(name);
    if (found != environment.end()) line += std::string(name) + "=" + found->second + " ";
  }
  // Without the channel's secret nothing is told apart from another job's.
  if (line.rfind("CONVOY_CHANNEL=", 0) == 0) tell(line);
}

void OrphanGuard::tell(const std::string& line) {
  const std::string whole = line + "\n";
  if (pipe_ >= 0 && write(pipe_, whole.data(), whole.size()) < 0) close(std::exchange(pipe_, -1));
}

}  // namespace convoy
