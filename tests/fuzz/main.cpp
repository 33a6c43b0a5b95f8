// Feeds mutated inputs to fuzz targets (targets.h) and saves those that break the contract.
//
//   fuzz [--seconds N] [--seed S] [--corpus FOLDER] [--found FOLDER] [TARGET | TARGET FILE]…
//
// N seconds for each target, all of them by default. `TARGET FILE` reads this file once. The exit code is 1 if an input
// was found; a crash ends the process after its input was saved.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>

#include "core/base/log.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/targets.h"

namespace {

namespace fs = std::filesystem;
using convoy::fuzz::Target;
using Clock = std::chrono::steady_clock;

constexpr double longest_seconds = 5;  // time limit for one input

struct Options {
  double seconds = 10;
  uint64_t seed = 1;
  std::string corpus, found = ".";
  std::vector<std::string> words;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The input that is being read, for the handler of signals.
std::string current, current_path;

// Allocates nothing: the heap may be damaged.
void save_and_end(int signal) {
  const auto put = [](int to, std::string_view text) { return write(to, text.data(), text.size()) >= 0; };
  const int file = open(current_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  put(STDERR_FILENO, file >= 0 && put(file, current) ? "a signal; the input is in " : "a signal; cannot write ");
  put(STDERR_FILENO, current_path);
  put(STDERR_FILENO, "\n");
  ::signal(signal, SIG_DFL);
  raise(signal);
}

// The handler runs on a separate stack, because a reader may have used up the stack of the thread.
void save_inputs_of_crashes() {
  static char memory[1 << 16];
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = sizeof memory;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = save_and_end;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) sigaction(signal, &action, nullptr);
}

// Returns the reason if the contract is broken, else "".
std::string run_one(const Target& target, const std::string& bytes, const std::string& folder) {
  current = bytes;
  alarm(static_cast<unsigned>(longest_seconds) + 15);  // a hang
  const Clock::time_point start = Clock::now();
  std::string reason;
  try {
    convoy::fuzz::check(target, bytes, folder);
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  alarm(0);
  if (reason.empty() && seconds > longest_seconds) reason = "took " + std::to_string(seconds) + " s";
  return reason;
}

int fuzz(const Target& target, const Options& options, const std::string& folder) {
  std::vector<std::string> corpus;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(options.corpus) / target.name))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) corpus.push_back(bytes_of(path));
  if (corpus.empty()) {
    std::cerr << target.name << ": its corpus is empty\n";
    return 1;
  }
  current_path = (fs::path(options.found) / ("fuzz-" + target.name + "-crash")).string();
  convoy::fuzz::Mutator mutator(corpus, options.seed);
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  int64_t inputs = 0, found = 0;
  const auto read = [&](const std::string& bytes) {
    ++inputs;
    const std::string reason = run_one(target, bytes, folder);
    if (reason.empty() || ++found > 10) return;
    const fs::path path = fs::path(options.found) / ("fuzz-" + target.name + "-" + std::to_string(inputs));
    std::ofstream(path, std::ios::binary) << bytes;
    std::cerr << target.name << ", input " << inputs << ": " << reason << "\n  " << path.string() << '\n';
  };
  for (const std::string& bytes : corpus) read(bytes);
  while (Clock::now() < end && found <= 10) read(mutator.next());
  std::cout << target.name << ": " << inputs << " inputs, seed " << options.seed << ", " << found << " found\n";
  return found > 0 ? 1 : 0;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (++i < argc) return argv[i];
      std::cerr << word << " needs a value\n";
      std::exit(64);
    };
    if (word == "--seconds")
      options.seconds = std::stod(value());
    else if (word == "--seed")
      options.seed = std::stoull(value());
    else if (word == "--corpus")
      options.corpus = value();
    else if (word == "--found")
      options.found = value();
    else
      options.words.push_back(word);
  }
  return options;
}

const Target* target_named(const std::string& name) {
  for (const Target& target : convoy::fuzz::targets())
    if (target.name == name) return &target;
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  convoy::log::set_level(convoy::log::level_named("error"));
  // A header that announces terabytes must not exhaust this machine. The address sanitizer itself reserves terabytes of
  // addresses, and has its own limit.
#if !defined(__SANITIZE_ADDRESS__)
  const rlimit memory{rlim_t{16} << 30, rlim_t{16} << 30};
  setrlimit(RLIMIT_AS, &memory);
#endif
  save_inputs_of_crashes();
  std::string folder = (fs::temp_directory_path() / "convoy-fuzz-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 74;
  int code = 0;
  try {
    if (options.words.size() == 2 && target_named(options.words[1]) == nullptr) {
      const Target* target = target_named(options.words[0]);
      if (target == nullptr) throw std::runtime_error("unknown target " + options.words[0]);
      current_path = "/dev/null";
      const std::string reason = run_one(*target, bytes_of(options.words[1]), folder);
      std::cout << (reason.empty() ? "keeps the contract" : reason) << '\n';
      code = reason.empty() ? 0 : 1;
    } else {
      for (const std::string& word : options.words)
        if (target_named(word) == nullptr) throw std::runtime_error("unknown target " + word);
      for (const Target& target : convoy::fuzz::targets())
        if (options.words.empty() ||
            std::find(options.words.begin(), options.words.end(), target.name) != options.words.end())
          code |= fuzz(target, options, folder);
    }
  } catch (const std::exception& error) {
    std::cerr << "fuzz: " << error.what() << '\n';
    code = 64;
  }
  fs::remove_all(folder);
  return code;
}
