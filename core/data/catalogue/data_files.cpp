// Keys that name files, by data set, with advice for a missing file.
#include "core/data/catalogue/catalogue.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/data/catalogue/declared_schema.h"
#include "core/data/catalogue/text_files.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/files/limits.h"

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

constexpr char table_advice[] = "give the path of your own file";
constexpr Source sources[] = {
    {"interactions", "", "path", false, "./quickstart fetches MovieLens-100K to .data/ml-100k.inter; or give your own"},
    {"interactions", "item_features", "path", false, "give a file with a line per item"},
    {"interactions", "user_features", "path", false, "give a file with a line per user"},
    {"fashion_mnist", "", "path", true, "Debian's package dataset-fashion-mnist has the files"},
    {"text", "", "path", false, "./quickstart puts a text to .data/text.txt; or give your own"},
    {"text", "", "tokenizer", false, "give a tokenizer.json, or a vocab.json with the merges.txt next to it"},
    {"text", "", "vocabulary", false, "give a file of tokens, or the word bytes"},
    {"images", "", "path", true, "give a folder with a folder of images for each class"},
    {"table", "", "path", false, table_advice},
    {"table", "", "target_path", false, table_advice},
    {"table", "evaluate", "path", false, table_advice},
    {"table", "evaluate", "target_path", false, table_advice},
};

// The reason why `path` cannot be read; "" if it can.
std::string problem_of(const std::string& path, bool folder) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    std::error_code none;
    const std::string from = path[0] == '/' ? "" : str(" from ", std::filesystem::current_path(none).string());
    return errno == ENOENT ? str(folder ? "no such folder" : "no such file", from) : error_text(errno);
  }
  if (S_ISDIR(facts.st_mode) != folder) return folder ? "is not a folder" : "is a folder, not a file";
  if (!folder && !S_ISREG(facts.st_mode)) return "is not a regular file";
  if (faccessat(AT_FDCWD, path.c_str(), folder ? R_OK | X_OK : R_OK, AT_EACCESS) != 0)
    return str("cannot be read: ", error_text(errno));
  return "";
}

// Does what problem_of does, for a path that may be a pattern of several files.
std::string problem_of_all(const std::string& path, bool folder) {
  if (folder) return problem_of(path, folder);
  try {
    for (const std::string& file : files_of(path))
      if (const std::string problem = problem_of(file, folder); !problem.empty())
        return file == path ? problem : str(file, ": ", problem);
    return "";
  } catch (const Error&) {
    return "no file matches this pattern";
  }
}

// Looks into the folder of one class; stops at the first image, since there may be a million.
bool holds_images(const fs::path& folder) {
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    std::error_code inner;
    if (!fs::is_directory(at->path(), inner)) continue;
    for (fs::directory_iterator file(at->path(), inner), last; !inner && file != last; file.increment(inner))
      if (is_image(file->path())) return true;
  }
  return static_cast<bool>(failure);  // if listing fails, the data set reports it later
}

void check_image_files(const Options& options) {
  const fs::path folder = options.text("path");
  std::error_code none;
  const bool split = fs::is_directory(folder / "train", none) && fs::is_directory(folder / "test", none);
  const fs::path classes = split ? folder / "train" : folder;
  if (!holds_images(classes))
    options.fail("path", classes.string(),
                 ": holds no images; put the images into one folder per class, as .png, .jpg or .jpeg files");
  if (split)
    refuse_without_effect(options.section("evaluate"), "fraction",
                          str("needs folders without test/, but ", folder.string(), " has one; leave it out"),
                          {options.location("path")});
}

// --- Columns of delimited files: their names, and the values of the first lines. Ranks check all lines. ---

// The file's first whole lines; empty if the first line has more than `tried` bytes.
std::string_view first_lines(const MappedFile& file) {
  constexpr size_t tried = 256 << 10;
  const std::string_view text = file.text();
  if (text.size() <= tried) return text;
  return text.substr(0, text.rfind('\n', tried) + 1);
}

// `keys`: the section whose key `path` names this file, or a pattern that matches it.
void check_table_columns(const Options& options, const Options& keys, const std::string& path) {
  const std::vector<std::string> words =
      options.has("categorical") ? options.texts("categorical") : std::vector<std::string>{};
  const bool fill = options.has("missing") && options.text("missing") == "fill";
  at_key(keys, "path", [&] {
    const MappedFile file(path);
    const std::string_view text = first_lines(file);
    if (text.empty() && !file.text().empty()) return;
    DelimitedReader reader(file.path(), text, delimiter_of(options));
    const Header header(reader, false, options.boolean("header"));
    const auto column = [&](const char* key, const std::string& name) {
      size_t found = 0;
      at_key(options, key, [&] { found = header.number(name, options.path() + "." + key); });
      return found;
    };
    const size_t target = column("target", options.text("target"));
    std::vector<size_t> numbers;
    for (const std::string& name : options.texts("features")) numbers.push_back(column("features", name));
    const bool chosen = !numbers.empty(), classes = options.text("task") == "classification";
    for (size_t i = 0; !chosen && i < header.names().size(); ++i)
      if (i != target) numbers.push_back(i);  // among them the weights
    if (options.has("weight")) {
      const size_t weight = column("weight", options.text("weight"));
      if (chosen) numbers.push_back(weight);
    }
    const auto is_words = [&](size_t number) {
      return std::find(words.begin(), words.end(), header.names()[number]) != words.end();
    };
    for (size_t i = 0; i < words.size(); ++i) {
      const bool feature = std::any_of(numbers.begin(), numbers.end(),
                                       [&](size_t number) { return header.names()[number] == words[i]; });
      if (!feature)
        options.fail(str("categorical.", i), str("is ", words[i], ", which is no feature of ", file.path(),
                                                 "; the columns are ", join(header.names(), ", ")));
    }
    numbers.erase(std::remove_if(numbers.begin(), numbers.end(), is_words), numbers.end());
    const size_t features = numbers.size();
    if (!classes) numbers.push_back(target);
    int64_t rows = 0;
    for (bool more = header.first_row_read() || reader.next(); more; more = reader.next(), ++rows) {
      for (size_t i = 0; i < numbers.size(); ++i)
        if (!(fill && i < features && is_missing_value(reader.field(numbers[i])))) reader.number(numbers[i]);
      if (classes && reader.field(target).empty()) reader.fail(target, "the class is missing");
    }
    if (rows == 0 && text.size() == file.text().size())
      throw Error(Failure::corrupt_data, file.path(), ": holds no rows");
  });
}

void check_interaction_columns(const Options& options, const std::string& path) {
  if (!options.json().contains("columns")) return;
  const Options columns = options.section("columns");
  const std::vector<std::string> words =
      options.has("categorical") ? options.texts("categorical") : std::vector<std::string>{};
  const bool fill = options.has("missing") && options.text("missing") == "fill";
  at_key(options, "path", [&] {
    const MappedFile file(path);
    const std::string_view text = first_lines(file);
    if (text.empty() && !file.text().empty()) return;
    const TextFormat form = TextFormat::from(options, file.path(), {".inter"});
    DelimitedReader reader(file.path(), text, form.delimiter);
    const Header header(reader, form.typed_header, form.header);
    const auto key_of = [&](const std::string& key) { return columns.path() + "." + key; };
    size_t user = 0, item = 0;
    at_key(columns, "user", [&] { user = header.token(columns.text("user"), key_of("user")); });
    at_key(columns, "item", [&] { item = header.token(columns.text("item"), key_of("item")); });
    struct Numbers {
      size_t column;
      std::string key, path;
      bool may_miss = false;
    };
    std::vector<Numbers> numbers;
    const auto add = [&](const char* key, const std::string& name) {
      const std::string path = key_of(key);
      at_key(columns, key, [&] { numbers.push_back({header.number(name, path), key, path}); });
    };
    for (const char* key : {"time", "weight"})
      if (columns.has(key)) add(key, columns.text(key));
    for (const char* key : {"context", "item_features", "user_features"})
      for (const std::string& name : columns.texts(key)) {
        if (std::find(words.begin(), words.end(), name) != words.end()) continue;
        add(key, name);
        numbers.back().may_miss = fill && key == std::string("context");
      }
    for (bool more = header.first_row_read() || reader.next(); more; more = reader.next()) {
      if (reader.field(user).empty()) reader.fail(user, "the user is missing");
      if (reader.field(item).empty()) reader.fail(item, "the item is missing");
      for (const Numbers& number : numbers)
        if (!(number.may_miss && is_missing_value(reader.field(number.column))))
          at_key(columns, number.key, [&] { float_of(reader, number.column, number.path.c_str()); });
    }
  });
}

// Compares the numbers of rows, as far as the headers are readable.
void check_array_rows(const Options& keys) {
  if (!keys.has("target_path")) return;
  const auto shape_of = [&](const char* key) {
    NpyHeader header;
    at_key(keys, key, [&] {
      const MappedFile file(keys.text(key));
      header = read_npy_header(file.path(), file.text());
    });
    return header.shape;
  };
  const std::vector<int64_t> features = shape_of("path"), targets = shape_of("target_path");
  if (features.empty() || targets.empty() || features[0] == targets[0]) return;
  at_key(keys, "target_path", [&] {
    throw Error(Failure::corrupt_data, keys.text("target_path"), ": holds ", targets[0], " targets for the ",
                features[0], " rows of ", keys.text("path"));
  });
}

void check_rows(const Options& options, const Options& keys) {
  if (!options.json().contains("delimiter")) return;
  const std::string ending = fs::path(keys.text("path")).extension();
  if (ending == ".npy" && files_of(keys.text("path")).size() == 1) check_array_rows(keys);
  if (ending == ".npy" || ending == ".safetensors") return;
  for (const std::string& path : files_of(keys.text("path"))) check_table_columns(options, keys, path);
}

void check_table_file(const Options& options) {
  const Options evaluate = options.section("evaluate");
  check_rows(options, options);
  if (!evaluate.has("path")) return;
  check_rows(options, evaluate);
  const std::string &path = options.text("path"), &other = evaluate.text("path");
  const FileShape trained = table_features_shape(options, path), held_out = table_features_shape(options, other);
  if (!trained || !held_out || *trained == *held_out) return;
  evaluate.fail("path", other, ": a row's features have the shape ", shape_text(*held_out), ", and those of ", path,
                " have ", shape_text(*trained), "; give files of the same columns");
}

void check_fashion(const Options& options) {
  const fs::path folder = options.text("path");
  for (const char* part : {"train", "t10k"})
    for (const char* kind : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      std::error_code none;
      const fs::path file = folder / (std::string(part) + kind);
      if (fs::exists(file, none) || fs::exists(file.string() + ".gz", none)) continue;
      options.fail("path", file.string(), ".gz is not there; Debian's package dataset-fashion-mnist has the files");
    }
}

// Refuses tables that no process of this host can hold. Rows of vectors and of tokens take no memory.
void check_synthetic_memory(const Options& options) {
  const std::string& kind = options.text("kind");
  double bytes = 0;
  const char* key = "rows";
  if (kind == "interactions") {
    const int64_t columns = options.has("cache") ? 0 : 2 + options.integer("context");  // else mapped
    bytes = 4 * double(options.integer("rows") + options.integer("users")) * double(1 + columns);
  } else if (kind != "tokens") {
    key = "features";
    bytes = 4 * double(options.integer(kind == "classification" ? "classes" : "targets")) *
            product_of(options.integers("features"));
  }
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    options.fail(key, "makes tables of ", human_bytes(bytes), " in each process, and this host has ",
                 human_bytes(memory), " of memory; take smaller sizes");
}

}  // namespace

bool is_image(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

void check_data_files(const std::string& name, const Options& options) {
  for (const Source& source : sources) {
    if (name != source.data) continue;
    if (name == "text" && source.key == std::string("vocabulary") && options.text("vocabulary") == "bytes") continue;
    const std::string section = source.section;
    if (!section.empty() && !options.json().contains(section)) continue;
    const Options at = section.empty() ? options : options.section(section);
    if (!at.json().contains(source.key) || !at.has(source.key)) continue;
    const std::string path = at.text(source.key);
    const std::string problem = path.empty() ? "is empty" : problem_of_all(path, source.folder);
    if (problem.empty()) continue;
    // ./quickstart helps only with the file that it fetches.
    const std::string_view advice = source.advice;
    const std::string file = fs::path(path).filename().string();
    const bool other = begins_with(advice, "./quickstart") && (file.empty() || advice.find(file) == advice.npos);
    at.fail(source.key, path, path.empty() ? "" : ": ", problem, "; ", other ? table_advice : source.advice);
  }
  if (name == "synthetic" && options.json().contains("kind")) check_synthetic_memory(options);
  if (name == "images") check_image_files(options);
  if (name == "table") check_table_file(options);
  if (name == "interactions")
    for (const std::string& path : files_of(options.text("path"))) check_interaction_columns(options, path);
  if (name == "text") check_text_files(options);
  if (name == "fashion_mnist") check_fashion(options);
}

}  // namespace convoy
