#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/catalogue/catalogue.h"
#include "core/data/catalogue/text_files.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/files/files.h"
#include "launch/init/draft.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr size_t most_categories = 4096;  // different words of a categorical column
constexpr size_t most_integer_classes = 20;

std::string yaml_list(const std::vector<std::string>& texts) {
  std::vector<std::string> words;
  for (const std::string& text : texts) words.push_back(yaml_word(text));
  return "[" + join(words, ", ") + "]";
}

// --- Delimited text ---

struct Form {
  char delimiter = ',';
  bool header = true;
};

std::optional<double> number_in(const DelimitedReader& reader, size_t column) {
  try {
    return reader.number(column);
  } catch (const Error&) {
    return {};
  }
}

// The most frequent separator of the first line; no header if every field of it is a number.
Form form_of(const MappedFile& file) {
  const std::string_view text = file.text();
  if (const std::string_view mark = text.substr(0, 2); mark == "\xff\xfe" || mark == "\xfe\xff")
    throw Error(Failure::corrupt_data, file.path(), ": is UTF-16; convert the file: iconv -f UTF-16 -t UTF-8 ",
                shell_word(file.path()), " > utf8-", shell_word(fs::path(file.path()).filename().string()));
  const std::string_view line = text.substr(0, text.find('\n'));
  Form form;
  for (const char each : {',', '\t', ';', '|'})
    if (std::count(line.begin(), line.end(), each) > std::count(line.begin(), line.end(), form.delimiter))
      form.delimiter = each;
  DelimitedReader reader(file.path(), text, form.delimiter);
  if (!reader.next()) throw Error(Failure::corrupt_data, file.path(), ": is empty");
  form.header = false;
  for (size_t column = 0; column < reader.columns(); ++column) form.header = form.header || !number_in(reader, column);
  return form;
}

struct Column {
  std::string name;
  int64_t missing = 0;
  int64_t missing_line = 0;  // the first one
  bool numbers = true, integers = true;
  int64_t decimal_commas = 0;                    // values such as 1,5
  Moments moments;                               // if all are numbers
  std::set<std::string, std::less<>> different;  // at most most_categories + 1

  bool unique(int64_t rows) const { return int64_t(different.size()) == rows - missing; }
};

struct Table {
  Form form;
  int64_t rows = 0;
  std::vector<Column> columns;
};

// "1,5" and "-12,25"
bool has_decimal_comma(std::string_view field) {
  if (!field.empty() && (field[0] == '-' || field[0] == '+')) field.remove_prefix(1);
  const size_t comma = field.find(',');
  return comma != std::string_view::npos && comma > 0 && comma + 1 < field.size() &&
         field.find_first_not_of("0123456789") == comma &&
         field.find_first_not_of("0123456789", comma + 1) == std::string_view::npos;
}

void add_value(Column& column, const DelimitedReader& reader, size_t index) {
  const std::string_view field = reader.field(index);
  if (is_missing_value(field)) {
    if (column.missing++ == 0) column.missing_line = reader.line();
    return;
  }
  if (column.numbers) {
    if (const std::optional<double> number = number_in(reader, index))
      column.moments.add(checked_float(reader, index, *number));  // as the training reads it
    else
      column.numbers = column.integers = false;
  }
  if (!column.numbers && has_decimal_comma(field)) ++column.decimal_commas;
  if (column.integers) column.integers = field.find_first_of(".eE") == std::string_view::npos;
  if (column.different.size() <= most_categories && column.different.find(field) == column.different.end())
    column.different.emplace(field);
}

// Names of columns and categories go into YAML and JSON files.
void check_utf8(const std::string& path, const std::string& text) {
  if (text.find('\0') != std::string::npos)
    throw Error(Failure::corrupt_data, path, ": '", printable(text),
                "' holds a NUL byte; remove them: tr -d '\\000' < ", shell_word(path), " > clean-",
                shell_word(fs::path(path).filename().string()));
  if (valid_utf8(text) == text) return;
  throw Error(Failure::corrupt_data, path, ": '", valid_utf8(text),
              "' is not UTF-8; convert the file: iconv -f LATIN1 -t UTF-8 ", shell_word(path), " > utf8-",
              shell_word(fs::path(path).filename().string()));
}

void check_texts(const std::string& path, const Table& table) {
  for (const Column& column : table.columns) {
    check_utf8(path, column.name);
    if (column.numbers) continue;
    for (const std::string& text : column.different) check_utf8(path, text);
    const int64_t known = table.rows - column.missing;
    if (column.decimal_commas * 2 > known)
      throw Error(Failure::corrupt_data, path, ": column ", column.name, " has decimal commas, as in ",
                  *std::find_if(column.different.begin(), column.different.end(), has_decimal_comma),
                  "; write decimal points, or remove the column");
  }
}

Table read_table(const MappedFile& file) {
  Table table;
  table.form = form_of(file);
  DelimitedReader reader(file.path(), file.text(), table.form.delimiter);
  const Header header(reader, false, table.form.header);
  for (const std::string& name : header.names()) table.columns.emplace_back().name = name;
  for (bool more = header.first_row_read() || reader.next(); more; more = reader.next(), ++table.rows)
    for (size_t index = 0; index < table.columns.size(); ++index) add_value(table.columns[index], reader, index);
  return table;
}

std::vector<std::string> names_of_columns(const Table& table) {
  std::vector<std::string> names;
  for (const Column& column : table.columns) names.push_back(column.name);
  return names;
}

const Column& target_column(const std::string& path, const Table& table, const std::string& target) {
  const std::vector<std::string> names = names_of_columns(table);
  const std::string columns = "the columns are " + join(names, ", ");
  if (target.empty())
    throw Error(Failure::command_line, "convoy init: ", path, ": name the column to predict by --target; ", columns);
  for (const Column& column : table.columns)
    if (column.name == target) return column;
  const std::string near = nearest(target, names);
  throw Error(Failure::command_line, "convoy init: --target ", target, ": ", path, " has no such column; ",
              near.empty() ? "" : "did you mean " + near + "? ", columns);
}

// True for classes, false for numbers.
bool is_classification(const std::string& path, const Table& table, const Column& target) {
  if (target.missing > 0)
    throw Error(Failure::corrupt_data, path, ":", target.missing_line, ": column ", target.name,
                ", the target, has no value in ", target.missing, " of ", table.rows, " rows; remove these rows");
  const size_t count = target.different.size();
  if (count < 2)
    throw Error(Failure::config, path, ": column ", target.name,
                " has the same value in every row, so there is nothing to predict; choose another --target");
  if (target.numbers && !(target.integers && count <= most_integer_classes && int64_t(count) * 5 <= table.rows))
    return false;
  if (!target.numbers && int64_t(count) * 2 > table.rows)
    throw Error(Failure::config, path, ": column ", target.name, " has ", count, " different words in ", table.rows,
                " rows: names, and not classes; choose another --target");
  return true;
}

DataDraft table_draft(const MappedFile& file, const std::string& target_name) {
  const std::string& path = file.path();
  const Table table = read_table(file);
  check_texts(path, table);
  const Column& target = target_column(path, table, target_name);
  check_rows(path, table.rows);
  const bool classes = is_classification(path, table, target);
  std::vector<std::string> features, categorical, left_out;
  bool missing = false, numbers = false;
  for (const Column& column : table.columns) {
    if (&column == &target) continue;
    const bool names = !column.numbers &&
                       (column.different.size() > most_categories || (column.unique(table.rows) && table.rows > 20));
    if (column.different.size() < 2 || names) {
      left_out.push_back(column.name);
      continue;
    }
    features.push_back(column.name);
    numbers = numbers || column.numbers;
    missing = missing || column.missing > 0;
    if (!column.numbers) categorical.push_back(column.name);
  }
  if (features.empty())
    throw Error(Failure::config, path, ": no column is left to predict ", target.name,
                " from: they have one value, or another word in every row (", join(left_out, ", "), ")");
  DataDraft draft;
  draft.found = str(table.rows, " rows; ", counted(features.size(), "feature"), ", ", categorical.size(),
                    " of them categorical; target ", target.name, ": ",
                    classes ? str(target.different.size(), " classes") : "numbers");
  draft.lines = {{"name: table", ""}, {"path: " + yaml_word(path), "paths start from the folder of the command"}};
  if (table.form.delimiter != ',')
    draft.lines.push_back(
        {str("delimiter: ",
             table.form.delimiter == '\t' ? std::string("tab") : yaml_word(std::string(1, table.form.delimiter))),
         ""});
  if (!table.form.header) draft.lines.push_back({"header: false", "columns are named 1, 2, …"});
  draft.lines.push_back({classes ? "task: classification" : "task: regression",
                         classes ? "each value of the target is a class" : "the target has numbers"});
  draft.lines.push_back({"target: " + yaml_word(target.name), ""});
  if (!left_out.empty())
    draft.lines.push_back({"features: " + yaml_list(features),
                           "without " + join(left_out, ", ") + ": one value, or another word in every row"});
  if (!categorical.empty())
    draft.lines.push_back({"categorical: " + yaml_list(categorical), "each category is an input"});
  if (missing) draft.lines.push_back({"missing: fill", "the mean, or a category of its own"});
  if (numbers) draft.lines.push_back({"scale: standard", "mean 0 and deviation 1, by the training rows"});
  draft.lines.push_back({"evaluate: {fraction: 0.2}", "one fifth of the rows is for evaluation"});
  set_mlp(draft, path, classes ? nullptr : &target.moments);
  set_length(draft, table.rows * 4 / 5, 256);
  return draft;
}

// --- Interactions ---

std::string column_like(const std::vector<std::string>& names, const std::vector<std::string>& wanted) {
  for (const std::string& name : names) {
    std::string plain;
    for (const char c : name)
      if (c != '_' && c != ' ') plain += char(std::tolower(static_cast<unsigned char>(c)));
    if (std::find(wanted.begin(), wanted.end(), plain) != wanted.end()) return name;
  }
  return "";
}

struct InteractionColumns {
  std::string user, item, time;
};

InteractionColumns interaction_columns(const std::vector<std::string>& names) {
  return {column_like(names, {"userid", "user"}), column_like(names, {"itemid", "item", "movieid", "productid"}),
          column_like(names, {"timestamp", "time"})};
}

DataDraft interactions_draft(const MappedFile& file, bool typed) {
  const std::string& path = file.path();
  Form form{'\t', true};
  if (!typed) form = form_of(file);
  DelimitedReader reader(path, file.text(), form.delimiter);
  const Header header(reader, typed, true);
  const InteractionColumns columns = interaction_columns(header.names());
  if (columns.user.empty() || columns.item.empty())
    throw Error(Failure::config, path, ": the columns of users and items are not user_id and item_id; the columns are ",
                join(header.names(), ", "), "; write the file as in docs/howto/own_data.md, with data.columns");
  const size_t user = header.column(columns.user, "user", false), item = header.column(columns.item, "item", false);
  std::unordered_map<std::string, std::set<std::string>> items_of;
  std::set<std::string> items;
  int64_t rows = 0;
  for (; reader.next(); ++rows) {
    items_of[std::string(reader.field(user))].emplace(reader.field(item));
    items.emplace(reader.field(item));
  }
  size_t most = 0;
  for (const auto& each : items_of) most = std::max(most, each.second.size());
  if (most == items.size())
    throw Error(Failure::config, path, ": a user has all ", items.size(),
                " items, so none is left to rank against them; give data with more items");
  DataDraft draft;
  draft.found = str(rows, " interactions of ", items_of.size(), " users with ", items.size(), " items");
  draft.lines = {{"name: interactions", ""},
                 {"path: " + yaml_word(path), "paths start from the folder of the command"}};
  if (form.delimiter != (typed ? '\t' : ','))
    draft.lines.push_back(
        {"delimiter: " + (form.delimiter == '\t' ? "tab" : yaml_word(std::string(1, form.delimiter))), ""});
  draft.lines.push_back({str("columns: {user: ", yaml_word(columns.user), ", item: ", yaml_word(columns.item),
                             columns.time.empty() ? "" : ", time: " + yaml_word(columns.time), "}"),
                         ""});
  draft.lines.push_back({"negatives: 4", "items that are drawn for each positive"});
  draft.lines.push_back(columns.time.empty()
                            ? DataDraft::Line{"holdout: random", "one of each user is for evaluation"}
                            : DataDraft::Line{"holdout: latest", "the latest of each user is for evaluation"});
  // Drawn candidates are neither items of the user nor the held-out one.
  const auto candidates = std::min<int64_t>(99, int64_t(items.size()) - int64_t(most) - 1);
  if (candidates > 0)
    draft.lines.push_back({str("candidates: ", candidates), "evaluation ranks it among this number of drawn items"});
  else
    draft.lines.push_back({"ranking: full", "evaluation ranks it among all items"});
  draft.model = "ncf";
  set_length(draft, rows, 256);
  return draft;
}

// --- Other data ---

DataDraft text_draft(const MappedFile& file) {
  const auto bytes = int64_t(file.text().size());
  if (const std::string problem = text_problem(file.text()); !problem.empty())
    throw Error(Failure::corrupt_data, file.path(), ": ", problem);
  const int64_t length = std::min<int64_t>(64, bytes / 40);
  if (length < 4)
    throw Error(Failure::config, file.path(), ": has ", bytes, " bytes, too few to learn from; give a longer text");
  DataDraft draft;
  draft.found = str("text of ", human_bytes(bytes), ", each byte a token");
  draft.lines = {{"name: text", ""},
                 {"path: " + yaml_word(file.path()), "paths start from the folder of the command"},
                 {"vocabulary: bytes", "or tokenizer: FILE, made by `convoy vocabulary`"},
                 {str("length: ", length), "tokens of a sequence"},
                 {"evaluate: {fraction: 0.1}", "the end of the file is for evaluation"}};
  draft.model = "gpt";
  draft.model_options = "layers: 2, heads: 4, dim: 64";
  draft.optimizer = "{name: adamw, lr: 1.0e-3, clip_norm: 1.0}";
  draft.length = "max_steps: 500";
  draft.batch = std::min<int64_t>(16, std::max<int64_t>(1, bytes / length / 8));
  draft.interval = "100 steps";
  return draft;
}

DataDraft folder_draft(const fs::path& folder) {
  DataDraft draft;
  std::error_code none;
  const fs::path idx = folder / "train-images-idx3-ubyte";
  const DataDraft::Line path{"path: " + yaml_word(folder.string()), "paths start from the folder of the command"};
  draft.model = "convnet";
  draft.model_options = "channels: [16, 32]";
  if (fs::exists(idx, none) || fs::exists(idx.string() + ".gz", none)) {
    draft.found = "grey images in IDX files, with their test images";
    draft.lines = {{"name: fashion_mnist", "any set in the same IDX files"}, path};
    draft.batch = 128;
    draft.length = "epochs: 3";
    return draft;
  }
  const bool split = fs::is_directory(folder / "train", none) && fs::is_directory(folder / "test", none);
  std::set<std::string> classes;
  int64_t images = 0;
  for (fs::directory_iterator at(split ? folder / "train" : folder, none), end; !none && at != end;
       at.increment(none)) {
    std::error_code inner;
    if (!fs::is_directory(at->path(), inner)) continue;
    for (fs::directory_iterator file(at->path(), inner), last; !inner && file != last; file.increment(inner))
      if (is_image(file->path())) ++images, classes.insert(at->path().filename().string());
  }
  if (classes.size() < 2)
    throw Error(
        Failure::config, folder.string(), ": has images of ", counted(classes.size(), "class", "classes"),
        "; a folder for each class is wanted here, with .png, .jpg or .jpeg files in it, or the four IDX files");
  draft.found = str(images, " images of ", classes.size(), " classes");
  draft.lines = {{"name: images", ""}, path, {"height: 32", "images are resized"}, {"width: 32", ""}};
  if (!split) draft.lines.push_back({"evaluate: {fraction: 0.2}", "one fifth of the images is for evaluation"});
  set_length(draft, images, 64);
  draft.length = "epochs: 10";
  return draft;
}

bool is_delimited(const std::string& ending) {
  return ending == ".csv" || ending == ".tsv" || ending == ".data" || ending == ".tab";
}

}  // namespace

std::string yaml_word(const std::string& text) {
  static const std::set<std::string> words{"true", "false", "null", "auto", "yes", "no", "on", "off"};
  const bool plain = !text.empty() && words.count(text) == 0 &&
                     (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_' || text[0] == '/') &&
                     std::all_of(text.begin(), text.end(), [](unsigned char c) {
                       return std::isalnum(c) || c == '_' || c == '.' || c == '-' || c == '/';
                     });
  if (plain) return text;
  std::string literal;  // ${ would name a variable
  for (size_t i = 0; i < text.size(); ++i)
    literal += text.compare(i, 2, "${") == 0 ? std::string("$$") : std::string(1, text[i]);
  return Json(literal).dump();
}

std::vector<std::string> target_choices(const std::string& path) {
  const bool tensors = ends_in(path, ".safetensors");
  if (!tensors && !is_delimited(fs::path(path).extension())) return {};
  const MappedFile file(path);
  if (tensors) return tensor_names(file);
  const Form form = form_of(file);
  DelimitedReader reader(path, file.text(), form.delimiter);
  return Header(reader, false, form.header).names();
}

DataDraft inspect_data(const std::string& path, const std::string& target) {
  const auto without_target = [&](const char* predicted) {
    if (!target.empty())
      throw Error(Failure::command_line, "convoy init: --target ", target, ": ", path, " takes no target, because ",
                  predicted, "; leave --target out");
  };
  std::error_code none;
  if (!fs::exists(path, none))
    throw Error(Failure::command_line, "convoy init: --data ", path, ": no such file or folder from ",
                working_folder());
  if (fs::is_directory(path, none)) {
    without_target("the name of its folder is the class of an image");
    return folder_draft(path);
  }
  const std::string ending = fs::path(path).extension();
  const MappedFile file(path);
  if (ending == ".inter") {
    without_target("the model predicts which user meets which item");
    return interactions_draft(file, true);
  }
  if (ending == ".npy" || ending == ".safetensors") return arrays_draft(file, target);
  if (is_delimited(ending)) {
    const InteractionColumns columns = interaction_columns(target_choices(path));
    if (target.empty() && !columns.user.empty() && !columns.item.empty()) return interactions_draft(file, false);
    return table_draft(file, target);
  }
  if (ending == ".txt" || ending == ".md" || ending.empty()) {
    without_target("the model predicts the next letters");
    return text_draft(file);
  }
  throw Error(Failure::command_line, "convoy init: --data ", path,
              ": files end in .csv, .tsv, .inter, .npy, .safetensors or ",
              ".txt, and images are in a folder; for other data see docs/howto/own_data.md");
}

}  // namespace convoy
