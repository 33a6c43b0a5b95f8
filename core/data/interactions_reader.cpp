// One pass over the text, by several threads where it is long; ids become dense numbers in order of appearance.
#include "core/data/interactions_reader.h"

#define XXH_INLINE_ALL
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "core/data/delimited.h"
#include "core/data/header.h"
#include "core/error.h"

namespace convoy {
namespace {

// From the words of the file to 0, 1, 2, … A table by hash: most lines look up words that are there, and what they wait for is
// memory, so a cell holds all that tells words of up to seven bytes apart.
class Numbering {
 public:
  Numbering() : cells_(cells_at_first) {}
  int32_t operator()(std::string_view token) {
    const uint64_t key = key_of(token);
    size_t at = cell_of(key);
    for (; cells_[at].number >= 0; at = (at + 1) & (cells_.size() - 1)) {
      const Cell& cell = cells_[at];
      if (cell.key == key && (token.size() <= most_in_key || tokens_[size_t(cell.number)] == token)) return cell.number;
    }
    const auto number = int32_t(tokens_.size());
    cells_[at] = {key, number};
    tokens_.push_back(token);
    if (2 * tokens_.size() > cells_.size()) grow();
    return number;
  }
  int64_t size() const { return int64_t(tokens_.size()); }
  const std::vector<std::string_view>& in_order() const { return tokens_; }

 private:
  struct Cell {
    uint64_t key = 0;
    int32_t number = -1;
  };
  static constexpr size_t cells_at_first = 1024, most_in_key = 7;

  // The word itself and its length, or a hash with the highest bit set, which no length sets.
  static uint64_t key_of(std::string_view token) {
    if (token.size() > most_in_key) return XXH3_64bits(token.data(), token.size()) | uint64_t{1} << 63;
    uint64_t key = 0;
    std::memcpy(&key, token.data(), token.size());
    return key | uint64_t{token.size()} << 56;
  }
  size_t cell_of(uint64_t key) const { return XXH3_64bits(&key, sizeof key) & (cells_.size() - 1); }
  void grow() {
    std::vector<Cell> before(2 * cells_.size());
    before.swap(cells_);
    for (const Cell& cell : before) {
      if (cell.number < 0) continue;
      size_t at = cell_of(cell.key);
      while (cells_[at].number >= 0) at = (at + 1) & (cells_.size() - 1);
      cells_[at] = cell;
    }
  }

  std::vector<Cell> cells_;  // a power of two of them, half of them empty at least
  std::vector<std::string_view> tokens_;
};

Columns columns_of(const Interactions& all) {
  Columns columns{{"user", all.user}, {"item", all.item}, {"counts", at::empty({2}, at::kLong)}};
  columns["counts"].mutable_data_ptr<int64_t>()[0] = all.users;
  columns["counts"].mutable_data_ptr<int64_t>()[1] = all.items;
  if (all.time.defined()) columns["time"] = all.time;
  if (all.context.defined()) columns["context"] = all.context;
  if (all.weight.defined()) columns["weight"] = all.weight;
  columns["user_bytes"] = all.user_names.bytes();
  columns["user_ends"] = all.user_names.ends();
  columns["item_bytes"] = all.item_names.bytes();
  columns["item_ends"] = all.item_names.ends();
  return columns;
}

// As columns_of makes them, with numbers in their ranges.
bool is_sound(const Columns& columns, const InteractionColumns& how) {
  if (!has_column(columns, "user", at::kInt, {-1}) || !has_column(columns, "counts", at::kLong, {2})) return false;
  const int64_t rows = columns.at("user").numel();
  const int64_t users = columns.at("counts").const_data_ptr<int64_t>()[0];
  const int64_t items = columns.at("counts").const_data_ptr<int64_t>()[1];
  const auto contexts = int64_t(how.context.size());
  const bool whole =
      rows > 0 && has_column(columns, "item", at::kInt, {rows}) && has_column(columns, "user_bytes", at::kByte, {-1}) &&
      has_column(columns, "user_ends", at::kLong, {users}) && has_column(columns, "item_bytes", at::kByte, {-1}) &&
      has_column(columns, "item_ends", at::kLong, {items}) && (how.time.empty() || columns.count("time") == 1) &&
      (columns.count("time") == 0 || has_column(columns, "time", at::kDouble, {rows})) &&
      (how.weight.empty() ? columns.count("weight") == 0 : has_column(columns, "weight", at::kFloat, {rows})) &&
      (contexts == 0 ? columns.count("context") == 0 : has_column(columns, "context", at::kFloat, {rows, contexts}));
  if (!whole || !all_below(columns.at("user"), users) || !all_below(columns.at("item"), items)) return false;
  NameList(columns.at("user_bytes"), columns.at("user_ends"));
  NameList(columns.at("item_bytes"), columns.at("item_ends"));
  return true;
}

Interactions interactions_of(const Columns& columns) {
  const auto column = [&](const char* name) {
    const auto found = columns.find(name);
    return found == columns.end() ? at::Tensor() : found->second;
  };
  Interactions all;
  all.user = column("user");
  all.item = column("item");
  all.time = column("time");
  all.context = column("context");
  all.weight = column("weight");
  all.users = column("counts").const_data_ptr<int64_t>()[0];
  all.items = column("counts").const_data_ptr<int64_t>()[1];
  all.user_names = NameList(column("user_bytes"), column("user_ends"));
  all.item_names = NameList(column("item_bytes"), column("item_ends"));
  return all;
}

void set_names(Interactions& all, const Numbering& users, const Numbering& items) {
  all.users = users.size();
  all.items = items.size();
  all.user_names = NameList(users.in_order());
  all.item_names = NameList(items.in_order());
}

// Less text than this is not worth a thread.
constexpr int64_t bytes_per_thread = 1 << 20;

int64_t lines_in(std::string_view text) {
  const auto ends = std::count(text.begin(), text.end(), '\n');
  return ends + (text.empty() || text.back() == '\n' ? 0 : 1);
}

// Where in the file what is wanted stands.
struct Layout {
  Layout(const Header& header, const InteractionColumns& columns)
      : user(header.token(columns.user, "data.columns.user")),
        item(header.token(columns.item, "data.columns.item")),
        timed(!columns.time.empty() || header.has("timestamp")),
        weighted(!columns.weight.empty()) {
    if (timed) time = header.number(columns.time.empty() ? "timestamp" : columns.time, "data.columns.time");
    if (weighted) weight = header.number(columns.weight, "data.columns.weight");
    for (const auto& name : columns.context) context.push_back(header.number(name, "data.columns.context"));
  }

  size_t user, item;
  bool timed, weighted;
  size_t time = 0, weight = 0;
  std::vector<size_t> context;
};

Interactions empty_interactions(const Layout& layout, int64_t rows) {
  Interactions all;
  all.user = at::empty({rows}, at::kInt);
  all.item = at::empty({rows}, at::kInt);
  if (layout.timed) all.time = at::empty({rows}, at::kDouble);
  if (layout.weighted) all.weight = at::empty({rows}, at::kFloat);
  if (!layout.context.empty()) all.context = at::empty({rows, int64_t(layout.context.size())}, at::kFloat);
  return all;
}

Interactions narrowed(const Interactions& all, int64_t begin, int64_t rows) {
  const auto part = [&](const at::Tensor& column) {
    return column.defined() ? column.narrow(0, begin, rows) : at::Tensor();
  };
  Interactions made;
  made.user = part(all.user);
  made.item = part(all.item);
  made.time = part(all.time);
  made.context = part(all.context);
  made.weight = part(all.weight);
  return made;
}

// What is no number in a column that `option` chose may be the file's mistake or the option's.
double number_of(const DelimitedReader& reader, size_t column, const char* option) {
  try {
    return reader.number(column);
  } catch (const Error& error) {
    throw Error(error.kind(), str(error.what(), "; ", option, " takes a column of numbers"));
  }
}

// Consecutive lines, written into rows of the columns, with ids that are numbered within this part.
class Part {
 public:
  Part(const Layout& layout, int64_t lines) : Part(layout, empty_interactions(layout, lines)) {}
  Part(const Layout& layout, Interactions out) : layout_(layout), out_(std::move(out)) {}

  // `on_row`: the reader stands on the first row already. Blank lines at the end make rows fewer than lines.
  void read(DelimitedReader& reader, bool on_row) {
    int32_t* user = out_.user.mutable_data_ptr<int32_t>();
    int32_t* item = out_.item.mutable_data_ptr<int32_t>();
    double* time = layout_.timed ? out_.time.mutable_data_ptr<double>() : nullptr;
    float* weight = layout_.weighted ? out_.weight.mutable_data_ptr<float>() : nullptr;
    float* context = layout_.context.empty() ? nullptr : out_.context.mutable_data_ptr<float>();
    for (bool more = on_row || reader.next(); more; more = reader.next(), ++rows_) {
      if (reader.field(layout_.user).empty()) reader.fail(layout_.user, "the user is missing");
      if (reader.field(layout_.item).empty()) reader.fail(layout_.item, "the item is missing");
      *user++ = users_(reader.field(layout_.user));
      *item++ = items_(reader.field(layout_.item));
      if (layout_.timed) *time++ = number_of(reader, layout_.time, "data.columns.time");
      for (size_t column : layout_.context) *context++ = float(number_of(reader, column, "data.columns.context"));
      if (!layout_.weighted) continue;
      *weight = float(number_of(reader, layout_.weight, "data.columns.weight"));
      if (*weight++ < 0) reader.fail(layout_.weight, "a weight is negative");
    }
  }

  // The part's ids become those of the file, if parts are renumbered in order: numbers by first appearance, as one pass
  // over all lines would give them.
  void renumber(Numbering& users, Numbering& items) {
    renumber(out_.user, users_.in_order(), users);
    renumber(out_.item, items_.in_order(), items);
  }

  int64_t rows() const { return rows_; }
  Interactions made() const {
    Interactions all = narrowed(out_, 0, rows_);
    set_names(all, users_, items_);
    return all;
  }

 private:
  void renumber(at::Tensor& ids, const std::vector<std::string_view>& tokens, Numbering& numbering) const {
    std::vector<int32_t> numbers(tokens.size());
    std::transform(tokens.begin(), tokens.end(), numbers.begin(),
                   [&](std::string_view token) { return numbering(token); });
    int32_t* id = ids.mutable_data_ptr<int32_t>();
    for (int64_t row = 0; row < rows_; ++row) id[row] = numbers[size_t(id[row])];
  }

  const Layout& layout_;
  Interactions out_;
  int64_t rows_ = 0;
  Numbering users_, items_;
};

// Lines cut into `count` parts of about equal size, each but the last ending in a newline.
std::vector<std::string_view> parts_of(std::string_view text, int64_t count) {
  std::vector<std::string_view> parts;
  for (int64_t left = count; left > 1; --left) {
    const size_t end = text.find('\n', text.size() / size_t(left));
    if (end == std::string_view::npos) break;
    parts.push_back(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

// Nothing when some part is not as it should be: one pass over all lines then says what and where.
std::optional<Interactions> parsed_in_parts(const std::string& path, std::string_view text, char delimiter,
                                            size_t fields, const Layout& layout, int64_t threads) {
  const std::vector<std::string_view> texts = parts_of(text, threads);
  const auto count = int64_t(texts.size());
  std::vector<int64_t> lines(texts.size() + 1);
  at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) lines[size_t(i) + 1] = lines_in(texts[size_t(i)]);
  });
  for (size_t i = 1; i < lines.size(); ++i) lines[i] += lines[i - 1];
  const Interactions whole = empty_interactions(layout, lines.back());
  std::vector<Part> parts;
  for (size_t i = 0; i < texts.size(); ++i)
    parts.emplace_back(layout, narrowed(whole, lines[i], lines[i + 1] - lines[i]));
  std::vector<char> sound(texts.size());
  at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (auto i = size_t(first); i < size_t(last); ++i) {
      try {
        DelimitedReader reader(path, texts[i], delimiter);
        const bool there = reader.next();
        if (there && reader.columns() == fields) parts[i].read(reader, true);
        sound[i] = there ? reader.columns() == fields : i + 1 == texts.size();
        // Blank lines are for the end of the file.
        if (i + 1 < texts.size()) sound[i] = sound[i] && parts[i].rows() == lines[i + 1] - lines[i];
      } catch (const Error&) {
        sound[i] = 0;
      }
    }
  });
  if (std::count(sound.begin(), sound.end(), 0) > 0) return std::nullopt;
  Numbering users, items;
  int64_t rows = 0;
  for (Part& part : parts) {
    part.renumber(users, items);
    rows += part.rows();
  }
  Interactions all = narrowed(whole, 0, rows);
  set_names(all, users, items);
  return all;
}

char delimiter_from(const Options& options, bool typed) {
  if (!options.has("delimiter")) return typed ? '\t' : ',';
  const std::string& text = options.text("delimiter");
  if (text == "tab" || text == "\\t") return '\t';
  if (text.size() != 1) options.fail("delimiter", "has to be one character, or the word tab");
  return text[0];
}

}  // namespace

InteractionColumns InteractionColumns::from(const Options& options, const std::string& path) {
  const std::string& format = options.text("format");
  const bool inter = path.size() > 6 && path.compare(path.size() - 6, 6, ".inter") == 0;
  InteractionColumns columns;
  columns.typed_header = format == "inter" || (format == "auto" && inter);
  columns.delimiter = delimiter_from(options, columns.typed_header);
  columns.header = options.boolean("header");
  if (columns.typed_header && !columns.header) options.fail("header", "a typed header cannot be absent: format: csv");
  const auto names = options.section("columns");
  columns.user = names.text("user");
  columns.item = names.text("item");
  columns.time = names.has("time") ? names.text("time") : "";
  columns.context = names.texts("context");
  columns.weight = names.has("weight") ? names.text("weight") : "";
  return columns;
}

std::string InteractionColumns::described() const {
  Json all{{"typed", typed_header}, {"delimiter", std::string(1, delimiter)},
           {"header", header},      {"user", user},
           {"item", item},          {"time", time},
           {"context", context},    {"weight", weight}};
  return all.dump();
}

Interactions parse_interactions(const std::string& path, std::string_view text, const InteractionColumns& columns) {
  DelimitedReader reader(path, text, columns.delimiter);
  const Header header(reader, columns.typed_header, columns.header);
  const Layout layout(header, columns);
  const bool first_row_read = header.first_row_read();
  const std::string_view rest = reader.rest();
  const int64_t lines = lines_in(rest) + (first_row_read ? 1 : 0);
  if (lines > std::numeric_limits<int32_t>::max())
    throw Error(Failure::corrupt_data, str(path, ": holds ", lines, " interactions; 2147483647 are the most"));

  std::optional<Interactions> all;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), int64_t(text.size()) / bytes_per_thread);
  if (threads > 1 && !first_row_read)
    all = parsed_in_parts(path, rest, columns.delimiter, reader.columns(), layout, threads);
  if (!all) {
    Part part(layout, lines);
    part.read(reader, first_row_read);
    all = part.made();
  }
  if (all->size() == 0) throw Error(Failure::corrupt_data, str(path, ": holds no interactions"));
  all->context_names = columns.context;
  return std::move(*all);
}

Interactions read_interactions(const std::string& path, const InteractionColumns& columns) {
  const MappedFile file(path);
  Interactions all = interactions_of(cached_columns(
      file, "interactions " + columns.described(),
      [&] { return columns_of(parse_interactions(path, file.text(), columns)); },
      [&](const Columns& cached) { return is_sound(cached, columns); }));
  all.context_names = columns.context;
  all.fingerprint = file.hash();
  return all;
}

}  // namespace convoy
