#include "launch/stacks.h"

#include <cxxabi.h>
#include <stdlib.h>

#include <algorithm>
#include <map>

#include "core/text.h"
#include "launch/elf_symbols.h"

namespace convoy {
namespace {

struct Frame {
  std::string path;  // "" where nothing is known
  uint64_t offset = 0;
  std::string name;  // plain
};

bool begins_with(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

std::string file_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool of_libtorch(const Frame& frame) {
  const std::string file = file_of(frame.path);
  return begins_with(file, "libtorch") || begins_with(file, "libc10") || begins_with(frame.name, "at::") ||
         begins_with(frame.name, "c10::") || begins_with(frame.name, "torch::");
}

// What every stack ends in or goes through, and tells nothing.
bool machinery(const Frame& frame) {
  static const char* const starts[] = {"__libc_start",
                                       "_start",
                                       "start_thread",
                                       "clone",
                                       "__clone",
                                       "std::__invoke",
                                       "std::_Function_handler",
                                       "std::thread::",
                                       "std::function",
                                       "__restore_rt",
                                       "std::invoke",
                                       "__GI_",
                                       "std::__"};
  const std::string file = file_of(frame.path);
  if (frame.name.empty() && (begins_with(file, "libc.so") || begins_with(file, "libstdc++"))) return true;
  return std::any_of(std::begin(starts), std::end(starts),
                     [&](const char* start) { return begins_with(frame.name, start); });
}

std::vector<Frame> parsed(const std::vector<std::string>& frames) {
  std::vector<Frame> all;
  for (const std::string& text : frames) {
    const size_t plus = text.rfind("+0x");
    if (plus == std::string::npos) continue;
    all.push_back({text.substr(0, plus), strtoull(text.c_str() + plus + 3, nullptr, 16), ""});
  }
  return all;
}

void find_names(std::vector<Frame>& frames) {
  std::map<std::string, std::vector<size_t>> of_file;
  for (size_t i = 0; i < frames.size(); ++i) of_file[frames[i].path].push_back(i);
  for (const auto& [path, indices] : of_file) {
    std::vector<uint64_t> offsets;
    // A return address stands after its call, which may be the last thing in a function.
    for (size_t i : indices) offsets.push_back(frames[i].offset - (i == 0 ? 0 : 1));
    const std::vector<std::string> names = elf_symbols(path, offsets);
    for (size_t k = 0; k < indices.size(); ++k) frames[indices[k]].name = plain_function(names[k]);
  }
}

std::string words_of(const Frame& frame) {
  const std::string file = file_of(frame.path);
  if (frame.name.empty()) return file.empty() ? "?" : str("? (", file, ")");
  const bool ours = file == "convoy-rank" || begins_with(file, "libconvoy_core");
  return ours ? frame.name : str(frame.name, " (", file, ")");
}

// Removes what stands between `open` and its `close`, nested ones too.
std::string without(const std::string& text, char open, char close) {
  std::string kept;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool arrow = close == '>' && i > 0 && text[i] == '>' && text[i - 1] == '-';
    if (text[i] == open)
      ++depth;
    else if (text[i] == close && depth > 0 && !arrow)
      --depth;
    else if (depth == 0)
      kept += text[i];
  }
  return kept;
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

}  // namespace

std::string plain_function(const std::string& symbol) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  if (status != 0) return symbol;
  std::string name = demangled;
  free(demangled);
  replace_all(name, "(anonymous namespace)::", "");
  replace_all(name, "[abi:cxx11]", "");
  replace_all(name, "operator()", "operator call");
  if (name.find("operator<") == std::string::npos && name.find("operator>") == std::string::npos)
    name = without(name, '<', '>');
  // A lambda is told by the function that holds it.
  if (const size_t lambda = name.find("::{lambda"); lambda != std::string::npos) name.resize(lambda);
  if (const size_t arguments = name.find('('); arguments != std::string::npos) name.resize(arguments);
  replace_all(name, "operator call", "operator()");
  if (const size_t word = name.find_last_of(' ');
      word != std::string::npos && name.find("operator ") == std::string::npos)
    name = name.substr(word + 1);
  if (begins_with(name, "convoy::")) name = name.substr(8);
  return name;
}

std::vector<std::string> readable_stack(const std::vector<std::string>& addresses, size_t most) {
  std::vector<Frame> frames = parsed(addresses);
  find_names(frames);
  // A rank that has told of its wait is just doing that: what it waits in is further out.
  for (size_t i = frames.size(); i-- > 0;)
    if (frames[i].name == "GroupState::late") {
      frames.erase(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      break;
    }
  std::vector<std::string> lines;
  size_t folded = 0;  // frames of LibTorch that follow one that is shown
  bool in_libtorch = false;
  const auto end_fold = [&] {
    if (folded > 0) lines.push_back(str("… ", folded, " more in LibTorch"));
    folded = 0;
  };
  for (const Frame& frame : frames) {
    if (lines.size() >= most) break;
    const bool torch = of_libtorch(frame);
    if (torch && in_libtorch) {
      ++folded;
      continue;
    }
    if (machinery(frame)) continue;
    end_fold();
    in_libtorch = torch;
    const std::string line = words_of(frame);
    // A lambda has the name of the function that it is in.
    if (lines.empty() || lines.back() != line || frame.name.empty()) lines.push_back(line);
  }
  end_fold();
  return lines;
}

std::string readable_line(const std::string& line) {
  const size_t open = line.rfind('('), plus = line.rfind("+0x"), close = line.rfind(")[0x");
  const bool backtrace = open != std::string::npos && plus != std::string::npos && close != std::string::npos &&
                         open < plus && plus < close && line.back() == ']' && open > 0;
  if (!backtrace) return line;
  const std::string path = line.substr(0, open), symbol = line.substr(open + 1, plus - open - 1);
  std::string name = plain_function(symbol);
  if (name.empty()) {
    const uint64_t offset = strtoull(line.c_str() + plus + 3, nullptr, 16);
    name = plain_function(elf_symbols(path, {offset - 1}).front());
  }
  return name.empty() ? line : str("  ", name, " (", file_of(path), line.substr(plus, close - plus), ")");
}

}  // namespace convoy
