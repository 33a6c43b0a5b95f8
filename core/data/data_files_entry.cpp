// Which keys name files, and where each data set's come from.
#include "core/data/data_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/config/without_effect.h"
#include "core/data/file_shapes.h"
#include "core/data/mapped_file.h"
#include "core/data/text_file.h"
#include "core/data/vocabulary.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

struct Source {
  const char* data;
  const char* section;  // "": the data set itself
  const char* key;
  bool folder;
  const char* advice;
};

constexpr char own_table[] = "give the path of your own file";
constexpr Source sources[] = {
    {"interactions", "", "path", false, "./quickstart fetches MovieLens-100K to .data/ml-100k.inter; or give your own"},
    {"interactions", "item_features", "path", false, "give a file with a line per item"},
    {"interactions", "user_features", "path", false, "give a file with a line per user"},
    {"fashion_mnist", "", "path", true, "Debian's package dataset-fashion-mnist has the files"},
    {"text", "", "path", false, "./quickstart puts a text to .data/text.txt; or give your own"},
    {"text", "", "vocabulary", false, "give a file of tokens, or the word bytes"},
    {"images", "", "path", true, "give a folder with a folder of images for each class"},
    {"table", "", "path", false, own_table},
    {"table", "", "target_path", false, own_table},
    {"table", "evaluate", "path", false, own_table},
    {"table", "evaluate", "target_path", false, own_table},
};

// What is wrong with it; "" when nothing is.
std::string problem_of(const std::string& path, bool folder) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    std::error_code none;
    const std::string from = path[0] == '/' ? "" : str(" from ", std::filesystem::current_path(none).string());
    return errno == ENOENT ? str(folder ? "no such folder" : "no such file", from) : std::strerror(errno);
  }
  if (S_ISDIR(facts.st_mode) != folder) return folder ? "is no folder" : "is a folder and no file";
  if (!folder && !S_ISREG(facts.st_mode)) return "is no regular file";
  if (faccessat(AT_FDCWD, path.c_str(), folder ? R_OK | X_OK : R_OK, AT_EACCESS) != 0)
    return str("cannot be read: ", std::strerror(errno));
  return "";
}

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

// In a folder of it, which is a class; ends with the first, since there may be a million.
bool holds_images(const fs::path& folder) {
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    std::error_code inner;
    if (!fs::is_directory(at->path(), inner)) continue;
    for (fs::directory_iterator file(at->path(), inner), last; !inner && file != last; file.increment(inner))
      if (is_image(file->path())) return true;
  }
  return static_cast<bool>(failure);  // what cannot be listed the data set tells
}

void check_images(const Options& options) {
  const fs::path folder = options.text("path");
  std::error_code none;
  const bool split = fs::is_directory(folder / "train", none) && fs::is_directory(folder / "test", none);
  const fs::path classes = split ? folder / "train" : folder;
  if (!holds_images(classes))
    options.fail("path", str(classes.string(),
                             ": holds no images; a folder for each class is wanted here, with .png, .jpg "
                             "or .jpeg files in it"));
  if (split)
    refuse_without_effect(options.section("evaluate"), "fraction",
                          str("is for folders without test/, and ", folder.string(), " has one; leave it out"),
                          {options.mark("path")});
}

// Tokens of a vocabulary against the text's beginning; what is wrong further on, or with the vocabulary's file, ranks meet.
void check_vocabulary(const Options& options) {
  constexpr size_t tried = 1 << 20;
  const std::string& path = options.text("path");
  const std::string unknown = options.has("unknown") ? options.text("unknown") : "";
  std::optional<Vocabulary> vocabulary;
  try {
    const MappedFile file(options.text("vocabulary"));
    const std::string problem = not_a_vocabulary(file.text(), file.path());
    if (!problem.empty()) options.fail("vocabulary", str(file.path(), ": ", problem));
    vocabulary = Vocabulary::read(options.text("vocabulary"));
  } catch (const ConfigError&) {
    throw;
  } catch (const Error&) {
    return;
  }
  if (!unknown.empty() && vocabulary->number_of(unknown) < 0)
    options.fail("unknown", str("is '", unknown, "', which is no token of data.vocabulary"));
  if (!unknown.empty()) return;
  try {
    const MappedFile text(path);
    vocabulary->check(text.text(), tried, path);
  } catch (const Error& error) {
    options.fail("vocabulary", error.what());
  }
}

void check_table(const Options& options) {
  const Options evaluate = options.section("evaluate");
  if (!evaluate.has("path")) return;
  const std::string &path = options.text("path"), &other = evaluate.text("path");
  const FileShape trained = table_features_shape(options, path), held_out = table_features_shape(options, other);
  if (!trained || !held_out || *trained == *held_out) return;
  const auto text = [](const std::vector<int64_t>& shape) {
    std::vector<std::string> sizes;
    for (int64_t size : shape) sizes.push_back(std::to_string(size));
    return "[" + join(sizes, ", ") + "]";
  };
  evaluate.fail("path", str(other, ": a row's features have the shape ", text(*held_out), ", and those of ", path,
                            " have ", text(*trained), "; give files of the same columns"));
}

// A token has a byte at least.
void check_text(const Options& options) {
  std::error_code none;
  const std::string& path = options.text("path");
  const auto bytes = static_cast<int64_t>(fs::file_size(path, none));
  const int64_t length = options.integer("length");
  if (none) return;
  if (const std::string problem = not_text(MappedFile(path).text()); !problem.empty())
    options.fail("path", str(path, ": ", problem));
  if (bytes > length) return;
  if (bytes == 0) options.fail("path", str(path, ": is empty"));
  options.fail("length", str("is ", length, ", and ", path, " has ", bytes, bytes == 1 ? " byte" : " bytes",
                             "; a sequence takes one more than its length, the last token being a target only"));
}

void check_fashion(const Options& options) {
  const fs::path folder = options.text("path");
  for (const char* part : {"train", "t10k"})
    for (const char* kind : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      std::error_code none;
      const fs::path file = folder / (std::string(part) + kind);
      if (fs::exists(file, none) || fs::exists(file.string() + ".gz", none)) continue;
      options.fail("path",
                   str(file.string(), ".gz is not there; Debian's package dataset-fashion-mnist has the files"));
    }
}

}  // namespace

void check_data_files(const std::string& name, const Options& options) {
  for (const Source& source : sources) {
    if (name != source.data) continue;
    if (name == "text" && source.key == std::string("vocabulary") && options.text("vocabulary") == "bytes") continue;
    const std::string section = source.section;
    if (!section.empty() && !options.json().contains(section)) continue;
    const Options at = section.empty() ? options : options.section(section);
    if (!at.json().contains(source.key) || !at.has(source.key)) continue;
    const std::string path = at.text(source.key);
    const std::string problem = path.empty() ? "is empty" : problem_of(path, source.folder);
    if (!problem.empty()) at.fail(source.key, str(path, path.empty() ? "" : ": ", problem, "; ", source.advice));
  }
  if (name == "images") check_images(options);
  if (name == "table") check_table(options);
  if (name == "text") {
    check_text(options);
    if (options.text("vocabulary") != "bytes") check_vocabulary(options);
  }
  if (name == "fashion_mnist") check_fashion(options);
}

}  // namespace convoy
