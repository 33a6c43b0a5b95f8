// Interactions as columns of a cache, and the reader of their text.
#include "core/data/readers/interactions_reader.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/log.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/data/sets/features.h"

namespace convoy {

// --- Interactions as columns of a cache ---

namespace {

// Tensors of interactions, and their names in a cache.
struct NamedColumn {
  const char* name;
  at::Tensor Interactions::*tensor;
  bool by_row;  // has one element for each interaction
};
constexpr NamedColumn named_columns[] = {
    {"user", &Interactions::user, true},
    {"item", &Interactions::item, true},
    {"time", &Interactions::time, true},
    {"context", &Interactions::context, true},
    {"weight", &Interactions::weight, true},
    {"item_features", &Interactions::item_features, false},
    {"user_features", &Interactions::user_features, false},
    {"context_kinds", &Interactions::context_kinds, false},
};

}  // namespace

Columns columns_of(const Interactions& all) {
  Columns columns{{"counts", at::empty({2}, at::kLong)},
                  {"user_bytes", all.user_names.bytes()},
                  {"user_ends", all.user_names.ends()},
                  {"item_bytes", all.item_names.bytes()},
                  {"item_ends", all.item_names.ends()}};
  columns["counts"].mutable_data_ptr<int64_t>()[0] = all.users;
  columns["counts"].mutable_data_ptr<int64_t>()[1] = all.items;
  for (const NamedColumn& column : named_columns)
    if ((all.*column.tensor).defined()) columns[column.name] = all.*column.tensor;
  const auto has_words = [](const ColumnWords& words) { return !words.empty(); };
  if (std::any_of(all.context_words.begin(), all.context_words.end(), has_words)) add_words(columns, all.context_words);
  return columns;
}

// True if columns_of could have made these columns: names, dtypes and shapes are right, and all numbers are in range.
bool are_valid_columns(const Columns& columns, const InteractionColumns& how) {
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
  const auto of_ids = [&](const char* name, int64_t ids, const std::vector<std::string>& named) {
    return named.empty() ? columns.count(name) == 0
                         : has_column(columns, name, at::kFloat, {ids, int64_t(named.size())});
  };
  if (!of_ids("item_features", items, how.item_features) || !of_ids("user_features", users, how.user_features))
    return false;
  constexpr auto kinds = int64_t(ContextKind::same_everywhere) + 1;
  if (contexts > 0 &&
      !(has_column(columns, "context_kinds", at::kByte, {contexts}) && all_below(columns.at("context_kinds"), kinds)))
    return false;
  const bool words = !how.prepare.categorical.empty();
  if (!whole || (words && contexts == 0)) return false;
  if (!are_valid_words(columns, words, words ? columns.at("context") : at::Tensor())) return false;
  if (!all_below(columns.at("user"), users) || !all_below(columns.at("item"), items)) return false;
  NameList(columns.at("user_bytes"), columns.at("user_ends"));
  NameList(columns.at("item_bytes"), columns.at("item_ends"));
  return true;
}

namespace {

Interactions interactions_of(const Columns& columns) {
  Interactions all;
  for (const NamedColumn& column : named_columns)
    if (const auto found = columns.find(column.name); found != columns.end()) all.*column.tensor = found->second;
  all.context_words = words_of(columns, size_t(all.contexts()));
  all.users = columns.at("counts").const_data_ptr<int64_t>()[0];
  all.items = columns.at("counts").const_data_ptr<int64_t>()[1];
  all.user_names = NameList(columns.at("user_bytes"), columns.at("user_ends"));
  all.item_names = NameList(columns.at("item_bytes"), columns.at("item_ends"));
  return all;
}

// Returns rows begin … begin + rows − 1, as views; without features and names.
Interactions row_range(const Interactions& all, int64_t begin, int64_t rows) {
  Interactions result;
  for (const NamedColumn& column : named_columns)
    if (column.by_row && (all.*column.tensor).defined())
      result.*column.tensor = (all.*column.tensor).narrow(0, begin, rows);
  return result;
}

}  // namespace

// --- Reader: one pass over the text, by several threads if it is long ---
//
// Ids become dense numbers in order of first appearance.

namespace {

// Maps words of the file to 0, 1, 2, … with a hash table. Most look-ups hit and wait for memory, so a cell contains
// everything that distinguishes words of up to seven bytes.
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

  // The word itself with its length; for long words a hash with the highest bit set, which no length sets.
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

  std::vector<Cell> cells_;  // size: a power of two; at least half of them empty
  std::vector<std::string_view> tokens_;
};

void set_names(Interactions& all, const Numbering& users, const Numbering& items) {
  all.users = users.size();
  all.items = items.size();
  all.user_names = NameList(users.in_order());
  all.item_names = NameList(items.in_order());
}

// Less text than this does not justify a thread.
constexpr int64_t bytes_per_thread = 1 << 20;

int64_t lines_in(std::string_view text) {
  const auto ends = std::count(text.begin(), text.end(), '\n');
  return ends + (text.empty() || text.back() == '\n' ? 0 : 1);
}

// Indices of the wanted columns in the file.
struct Layout {
  Layout(const Header& header, const InteractionColumns& columns)
      : user(header.token(columns.user, "data.columns.user")),
        item(header.token(columns.item, "data.columns.item")),
        fill(columns.prepare.fill),
        timed(!columns.time.empty() || header.has("timestamp")),
        weighted(!columns.weight.empty()) {
    if (timed) time = header.number(columns.time.empty() ? "timestamp" : columns.time, "data.columns.time");
    if (weighted) weight = header.number(columns.weight, "data.columns.weight");
    for (const auto& name : columns.context) {
      categorical.push_back(columns.prepare.is_categorical(name) ? 1 : 0);
      has_words = has_words || categorical.back() != 0;
      context.push_back(header.column(name, "data.columns.context", categorical.back() == 0));
    }
    for (const auto& name : columns.item_features)
      item_features.push_back(header.number(name, "data.columns.item_features"));
    for (const auto& name : columns.user_features)
      user_features.push_back(header.number(name, "data.columns.user_features"));
  }

  size_t user, item;
  bool fill;  // missing contexts are allowed
  bool timed, weighted;
  bool has_words = false;         // some context column is categorical
  std::vector<char> categorical;  // by context column
  size_t time = 0, weight = 0;
  std::vector<size_t> context, item_features, user_features;
};

// Finds columns with one value per item or user: feature columns must be so, context columns may be.
class IdValues {
 public:
  explicit IdValues(const Layout& layout)
      : layout_(layout),
        item_features_(layout.item_features.size()),
        user_features_(layout.user_features.size()),
        context_of_item_(layout.context.size()),
        context_of_user_(layout.context.size()) {}

  void add(const DelimitedReader& reader, int32_t user, int32_t item, const float* context) {
    context_of_item_.add(item, context, reader.line());
    context_of_user_.add(user, context, reader.line());
    add_features(reader, item_features_, item, layout_.item_features, layout_.item, "item");
    add_features(reader, user_features_, user, layout_.user_features, layout_.user, "user");
  }
  // False if a feature of some id differs between the parts.
  bool merge(const IdValues& part, const std::vector<int32_t>& users, const std::vector<int32_t>& items) {
    context_of_item_.merge(part.context_of_item_, items);
    context_of_user_.merge(part.context_of_user_, users);
    const bool same_items = item_features_.merge(part.item_features_, items);
    return user_features_.merge(part.user_features_, users) && same_items;
  }
  void write_to(Interactions& all) const {
    if (!layout_.item_features.empty()) all.item_features = item_features_.values();
    if (!layout_.user_features.empty()) all.user_features = user_features_.values();
    if (layout_.context.empty()) return;
    all.context_kinds = at::zeros({int64_t(layout_.context.size())}, at::kByte);
    set_kinds(context_of_user_, all.size(), all.users, ContextKind::of_user, all.context_kinds);
    set_kinds(context_of_item_, all.size(), all.items, ContextKind::of_item, all.context_kinds);
  }

 private:
  void add_features(const DelimitedReader& reader, ValuesPerId& values, int32_t id, const std::vector<size_t>& columns,
                    size_t id_column, const char* entity) {
    if (columns.empty()) return;
    const std::string option = str("data.columns.", entity, "_features");
    row_.clear();
    for (size_t column : columns) row_.push_back(float_of(reader, column, option.c_str()));
    const size_t differing = values.add(id, row_.data(), reader.line());
    if (differing == columns.size()) return;
    reader.fail(columns[differing], "differs from an earlier line of ", entity, " '", reader.field(id_column),
                "'; a column of ", option, " has one value per ", entity,
                "; correct it, or list the column under data.columns.context");
  }
  // Requires twice as many rows as ids: with fewer, a column may look constant per id by chance.
  static void set_kinds(const ValuesPerId& values, int64_t rows, int64_t ids, ContextKind kind, at::Tensor& kinds) {
    if (rows < 2 * ids) return;
    auto* to = kinds.mutable_data_ptr<uint8_t>();
    for (size_t column : values.watched())
      to[column] = uint8_t(values.same_for_all(column) ? ContextKind::same_everywhere : kind);
  }

  const Layout& layout_;
  ValuesPerId item_features_, user_features_, context_of_item_, context_of_user_;
  std::vector<float> row_;
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

// Consecutive lines, parsed into rows of the columns; ids are numbered within the part.
class Part {
 public:
  Part(const Layout& layout, int64_t lines) : Part(layout, empty_interactions(layout, lines)) {}
  Part(const Layout& layout, Interactions out)
      : layout_(layout), out_(std::move(out)), words_(layout.context.size()), values_(layout) {}

  // `on_row`: the reader has read the first row already. Blank lines at the end are no rows.
  void read(DelimitedReader& reader, bool on_row) {
    int32_t* user = out_.user.mutable_data_ptr<int32_t>();
    int32_t* item = out_.item.mutable_data_ptr<int32_t>();
    double* time = layout_.timed ? out_.time.mutable_data_ptr<double>() : nullptr;
    float* weight = layout_.weighted ? out_.weight.mutable_data_ptr<float>() : nullptr;
    float* context = layout_.context.empty() ? nullptr : out_.context.mutable_data_ptr<float>();
    for (bool more = on_row || reader.next(); more; more = reader.next(), ++rows_) {
      if (reader.field(layout_.user).empty()) reader.fail(layout_.user, "the user is missing");
      if (reader.field(layout_.item).empty()) reader.fail(layout_.item, "the item is missing");
      *user = users_(reader.field(layout_.user));
      *item = items_(reader.field(layout_.item));
      if (layout_.timed) *time++ = number_of(reader, layout_.time, "data.columns.time");
      const float* const first = context;
      for (size_t i = 0; i < layout_.context.size(); ++i)
        *context++ = layout_.categorical[i] != 0
                         ? float(words_[i](raw_word(reader, layout_.context[i], layout_.fill)))
                         : raw_number(reader, layout_.context[i], layout_.fill, "data.columns.context");
      values_.add(reader, *user++, *item++, first);
      if (!layout_.weighted) continue;
      *weight = float_of(reader, layout_.weight, "data.columns.weight");
      if (*weight++ < 0) reader.fail(layout_.weight, "a weight is negative");
    }
  }

  // Renumbers the part's ids as ids of the file. Parts must be renumbered in order: then numbers follow first
  // appearance, as in one pass over all lines. False if a feature differs between parts.
  bool join(Numbering& users, Numbering& items, IdValues& values) {
    const std::vector<int32_t> user_numbers = renumber(out_.user, users_.in_order(), users),
                               item_numbers = renumber(out_.item, items_.in_order(), items);
    return values.merge(values_, user_numbers, item_numbers);
  }

  int64_t rows() const { return rows_; }
  Interactions interactions() {
    Interactions all = row_range(out_, 0, rows_);
    set_names(all, users_, items_);
    if (layout_.has_words) sort_words(all);
    values_.write_to(all);
    return all;
  }

 private:
  void sort_words(Interactions& all) {
    for (size_t column = 0; column < words_.size(); ++column) {
      const std::vector<int64_t> becomes = words_[column].sort();
      all.context_words.push_back(words_[column].words());
      float* value = all.context.mutable_data_ptr<float>() + column;
      for (int64_t row = 0; !becomes.empty() && row < rows_; ++row, value += words_.size())
        *value = float(becomes[size_t(*value)]);
    }
  }
  std::vector<int32_t> renumber(at::Tensor& ids, const std::vector<std::string_view>& tokens,
                                Numbering& numbering) const {
    std::vector<int32_t> numbers(tokens.size());
    std::transform(tokens.begin(), tokens.end(), numbers.begin(),
                   [&](std::string_view token) { return numbering(token); });
    int32_t* id = ids.mutable_data_ptr<int32_t>();
    for (int64_t row = 0; row < rows_; ++row) id[row] = numbers[size_t(id[row])];
    return numbers;
  }

  const Layout& layout_;
  Interactions out_;
  int64_t rows_ = 0;
  Numbering users_, items_;
  std::vector<WordNumbers> words_;  // by categorical context column
  IdValues values_;
};

// Splits the text into `count` parts of about equal size; each but the last ends in a newline.
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

// nullopt if some part has an error: one pass over all lines then reports it with its position.
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
    parts.emplace_back(layout, row_range(whole, lines[i], lines[i + 1] - lines[i]));
  std::vector<char> valid(texts.size());
  at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (auto i = size_t(first); i < size_t(last); ++i) {
      try {
        DelimitedReader reader(path, texts[i], delimiter);
        const bool there = reader.next();
        if (there && reader.columns() == fields) parts[i].read(reader, true);
        valid[i] = there ? reader.columns() == fields : i + 1 == texts.size();
        // Blank lines are allowed only at the end of the file.
        if (i + 1 < texts.size()) valid[i] = valid[i] && parts[i].rows() == lines[i + 1] - lines[i];
      } catch (const Error&) {
        valid[i] = 0;
      }
    }
  });
  if (std::count(valid.begin(), valid.end(), 0) > 0) return std::nullopt;
  Numbering users, items;
  IdValues values(layout);
  int64_t rows = 0;
  for (Part& part : parts) {
    if (!part.join(users, items, values)) return std::nullopt;
    rows += part.rows();
  }
  Interactions all = row_range(whole, 0, rows);
  set_names(all, users, items);
  values.write_to(all);
  return all;
}

void log_context_kinds(const std::string& path, const std::vector<std::string>& names, const at::Tensor& kinds) {
  for (size_t column = 0; kinds.defined() && column < names.size(); ++column) {
    const std::string named = str("data.columns.context: '", names[column], "' of ", path);
    switch (static_cast<ContextKind>(kinds.const_data_ptr<uint8_t>()[column])) {
      case ContextKind::of_item:
        log::warning(str(named,
                         " has one value per item: it describes the item. Drawn negatives share the context of their "
                         "positive, so it cannot distinguish them; list it under data.columns.item_features"));
        break;
      case ContextKind::of_user:
        log::warning(str(named,
                         " has one value per user. It works as context; listed under "
                         "data.columns.user_features it is stored once per user"));
        break;
      case ContextKind::same_everywhere:
        log::warning(str(named, " has the same value in each line: it carries no information; leave it out"));
        break;
      case ContextKind::of_interaction:
        break;
    }
  }
}

}  // namespace

InteractionColumns InteractionColumns::from(const Options& options, const std::string& path) {
  InteractionColumns columns;
  static_cast<TextFormat&>(columns) = TextFormat::from(options, path, {".inter"});
  const auto names = options.section("columns");
  columns.user = names.text("user");
  columns.item = names.text("item");
  columns.time = names.has("time") ? names.text("time") : "";
  columns.context = names.texts("context");
  columns.item_features = names.texts("item_features");
  columns.user_features = names.texts("user_features");
  columns.weight = names.has("weight") ? names.text("weight") : "";
  columns.prepare = PreparationOptions::from(options);
  return columns;
}

std::string InteractionColumns::cache_key() const {
  Json key = TextFormat::cache_key();
  key.update({{"user", user},
              {"item", item},
              {"time", time},
              {"context", context},
              {"item_features", item_features},
              {"user_features", user_features},
              {"weight", weight}});
  // Only if they are set, so that caches of earlier versions stay valid.
  if (prepare.fill) key["fill"] = true;
  if (!prepare.categorical.empty()) key["categorical"] = prepare.categorical;
  return key.dump();
}

Interactions parse_interactions(const std::string& path, std::string_view text, const InteractionColumns& columns) {
  DelimitedReader reader(path, text, columns.delimiter);
  const Header header(reader, columns.typed_header, columns.header);
  const Layout layout(header, columns);
  const bool first_row_read = header.first_row_read();
  const std::string_view rest = reader.rest();
  const int64_t lines = lines_in(rest) + (first_row_read ? 1 : 0);
  if (lines > std::numeric_limits<int32_t>::max())
    throw Error(Failure::corrupt_data, path, ": holds ", lines, " interactions; the maximum is 2147483647");

  std::optional<Interactions> all;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), int64_t(text.size()) / bytes_per_thread);
  // Words are numbered over the whole file.
  if (threads > 1 && !first_row_read && !layout.has_words)
    all = parsed_in_parts(path, rest, columns.delimiter, reader.columns(), layout, threads);
  if (!all) {
    Part part(layout, lines);
    part.read(reader, first_row_read);
    all = part.interactions();
  }
  if (all->size() == 0) throw Error(Failure::corrupt_data, path, ": holds no interactions");
  all->context_names = columns.context;
  return std::move(*all);
}

namespace {

Interactions read_one_file(const std::string& path, const InteractionColumns& columns) {
  const MappedFile file(path);
  Interactions all = interactions_of(cached_columns(
      file, "interactions " + columns.cache_key(),
      [&] { return columns_of(parse_interactions(path, file.text(), columns)); },
      [&](const Columns& cached) { return are_valid_columns(cached, columns); }));
  all.context_names = columns.context;
  all.fingerprint = file.hash();
  log_context_kinds(path, columns.context, all.context_kinds);
  if (all.item_features.defined())
    all.item_sources.push_back({path, all.item_names, all.item_features, columns.item_features, ""});
  if (all.user_features.defined())
    all.user_sources.push_back({path, all.user_names, all.user_features, columns.user_features, ""});
  return all;
}

}  // namespace

Interactions read_interactions(const std::string& path, const InteractionColumns& columns) {
  const std::vector<std::string> paths = files_of(path);
  std::vector<Interactions> parts;
  for (const std::string& one : paths) parts.push_back(read_one_file(one, columns));
  return joined_interactions(std::move(parts), paths);
}

void add_features(Interactions& all, const FeatureFile& items, const FeatureFile& users) {
  std::vector<std::string> fingerprints{all.fingerprint};
  const auto add = [&](const FeatureFile& file, std::vector<Features>& sources) {
    if (file.path.empty()) return;
    sources.push_back(read_features(file));
    fingerprints.push_back(str(file.entity, " ", sources.back().fingerprint));
  };
  add(items, all.item_sources);
  add(users, all.user_sources);
  all.item_features = features_of(all.item_sources, all.item_names, "item");
  all.user_features = features_of(all.user_sources, all.user_names, "user");
  all.item_feature_names = feature_names(all.item_sources);
  all.user_feature_names = feature_names(all.user_sources);
  if (fingerprints.size() > 1) all.fingerprint = combined_fingerprint(fingerprints);
}

}  // namespace convoy
