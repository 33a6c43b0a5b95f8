#include "launch/diagnose/stall_report.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <memory>

#include "core/base/text.h"

namespace convoy {
namespace {

constexpr Dwarf_Addr load_address = 1 << 20;  // any address; offsets are relative to it

// Finds no separate files of debug information: libdw could request them from a server.
int no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}
const Dwfl_Callbacks callbacks{dwfl_build_id_find_elf, no_debug_file, nullptr, nullptr};

struct Frame {
  std::string path;  // "": unknown
  uint64_t offset = 0;
  std::string name;  // name of the function, from plain_function; "": unknown
};

std::string file_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool of_libtorch(const Frame& frame) {
  const std::string file = file_of(frame.path);
  return begins_with(file, "libtorch") || begins_with(file, "libc10") || begins_with(frame.name, "at::") ||
         begins_with(frame.name, "c10::") || begins_with(frame.name, "torch::");
}

// Frames that most stacks contain and that explain nothing.
bool machinery(const Frame& frame) {
  static const char* const starts[] = {
      // Starts of processes and threads, and the return from a signal
      "__libc_start", "_start", "start_thread", "clone", "__clone", "__restore_rt", "__GI_",
      // Calls through the standard library
      "std::__invoke", "std::_Function_handler", "std::thread::", "std::function", "std::invoke", "std::__"};
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
    // A return address follows its call, which may be the last instruction of a function.
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

// Removes the text between `open` and its `close`, including nested pairs.
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

std::vector<std::string> elf_symbols(const std::string& path, const std::vector<uint64_t>& offsets) {
  std::vector<std::string> names(offsets.size());
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return names;
  struct stat status {};
  const std::unique_ptr<Dwfl, decltype(&dwfl_end)> session(dwfl_begin(&callbacks), &dwfl_end);
  Dwfl_Module* file = nullptr;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && session)
    file = dwfl_report_elf(session.get(), "", path.c_str(), fd, load_address, false);
  if (file == nullptr) {
    close(fd);
    return names;
  }
  dwfl_report_end(session.get(), nullptr, nullptr);
  Dwarf_Addr start = 0;
  dwfl_module_info(file, nullptr, &start, nullptr, nullptr, nullptr, nullptr, nullptr);
  for (size_t i = 0; i < offsets.size(); ++i) {
    GElf_Off past = 0;
    GElf_Sym symbol{};
    const char* name = dwfl_module_addrinfo(file, start + offsets[i], &past, &symbol, nullptr, nullptr, nullptr);
    // Without a size, the nearest symbol before the address may be another function.
    if (name != nullptr && past < std::max<GElf_Xword>(symbol.st_size, 1)) names[i] = name;
  }
  return names;
}

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
  // A lambda gets the name of its function.
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
  // A rank that reports a slow collective is inside that report: the wait is further out.
  for (size_t i = frames.size(); i-- > 0;)
    if (frames[i].name == "GroupState::report_slow") {
      frames.erase(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      break;
    }
  std::vector<std::string> lines;
  size_t folded = 0;  // LibTorch's frames after a printed one
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
    // A lambda has the name of its function.
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
