#include "core/ranking/recommender.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/npy_header.h"
#include "core/data/rows.h"
#include "core/ranking/item_ranking.h"

namespace convoy {

// --- Files of recommended items ---

namespace {

constexpr char16_t replacement = 0xFFFD;  // for bytes that are no UTF-8

template <class Number>
void append_number(std::string& out, Number number) {
  char text[64];
  if constexpr (std::is_floating_point_v<Number>)
    if (!std::isfinite(number)) {
      out += number != number ? "nan" : number > 0 ? "inf" : "-inf";
      return;
    }
  out.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

// Calls visit(item, score) for each item of a row's list.
template <class Visit>
void each_item(const TopItems& top, int64_t row, const Visit& visit) {
  const int64_t k = top.items.size(1), count = top.counts.const_data_ptr<int64_t>()[row];
  AT_DISPATCH_FLOATING_TYPES(top.scores.scalar_type(), "recommended_items", [&] {
    const int64_t* items = top.items.const_data_ptr<int64_t>() + row * k;
    const scalar_t* scores = top.scores.const_data_ptr<scalar_t>() + row * k;
    for (int64_t index = 0; index < count; ++index) visit(items[index], scores[index]);
  });
}

class TextWriter : public RecommendationWriter {
 public:
  TextWriter(OutputFile& out, RecommendationFormat format) : format_(std::move(format)), out_(out) {}
  void write(const int64_t* users, const TopItems& top) override {
    for (int64_t row = 0; row < top.items.size(0); ++row) {
      text_.clear();
      write_row(text_, users[row], top, row);
      out_.write(text_);
    }
  }

 protected:
  virtual void write_row(std::string& out, int64_t user, const TopItems& top, int64_t row) = 0;
  const RecommendationFormat format_;
  OutputFile& out_;

 private:
  std::string text_;  // text of one row
};

class CsvWriter : public TextWriter {
 public:
  CsvWriter(OutputFile& out, const RecommendationFormat& format) : TextWriter(out, format) {
    std::string header;
    append_field(header, format_.user, ',');
    header += ",rank,";
    append_field(header, format_.item, ',');
    out_.write(header + ",score\n");
  }

 private:
  static void append_id(std::string& out, const NameList& names, int64_t number) {
    if (names.size() == 0)
      append_number(out, number);
    else
      append_field(out, plain_name(names[number]), ',');
  }
  void write_row(std::string& out, int64_t user, const TopItems& top, int64_t row) override {
    int64_t rank = 0;
    each_item(top, row, [&](int64_t item, auto score) {
      append_id(out, format_.user_names, user);
      out += ',';
      append_number(out, ++rank);
      out += ',';
      append_id(out, format_.item_names, item);
      out += ',';
      append_number(out, score);
      out += '\n';
    });
  }
};

class JsonLinesWriter : public TextWriter {
 public:
  using TextWriter::TextWriter;

 private:
  static Json id(const NameList& names, int64_t number) {
    return names.size() == 0 ? Json(number) : Json(plain_name(names[number]));
  }
  void write_row(std::string& out, int64_t user, const TopItems& top, int64_t row) override {
    Json items = Json::array(), scores = Json::array();
    each_item(top, row, [&](int64_t item, auto score) {
      items.push_back(id(format_.item_names, item));
      // The shortest text that reads back to this score.
      std::string text;
      append_number(text, score);
      scores.push_back(std::isfinite(score) ? Json::parse(text) : Json(text));
    });
    const Json line{{format_.user, id(format_.user_names, user)}, {format_.item, items}, {"score", scores}};
    out += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }
};

// Ids in the form of numpy: text of a fixed number of UTF-32 characters, or numbers.
class NpyIds {
 public:
  explicit NpyIds(NameList names) : names_(std::move(names)) {
    for (int64_t i = 0; i < names_.size(); ++i) width_ = std::max(width_, characters(plain_name(names_[i])).size());
  }
  std::string type() const { return names_.size() == 0 ? "<i8" : str("<U", std::max<size_t>(1, width_)); }
  // `number`: −1 for none.
  void append(std::string& out, int64_t number) const {
    if (names_.size() == 0) {
      out.append(reinterpret_cast<const char*>(&number), sizeof number);
      return;
    }
    std::u32string text = number < 0 ? std::u32string() : characters(plain_name(names_[number]));
    text.resize(std::max<size_t>(1, width_));
    out.append(reinterpret_cast<const char*>(text.data()), text.size() * sizeof(char32_t));
  }

 private:
  static std::u32string characters(std::string_view text) {
    std::u32string result;
    while (!text.empty()) {
      const size_t bytes = utf8_character(text);
      if (bytes == 0) {
        result += char32_t(replacement);
        text.remove_prefix(1);
        continue;
      }
      const auto byte = [&](size_t i) { return char32_t(static_cast<unsigned char>(text[i])); };
      char32_t c = bytes == 1 ? byte(0) : byte(0) & (0xFFu >> (bytes + 1));
      for (size_t i = 1; i < bytes; ++i) c = c << 6 | (byte(i) & 0x3F);
      result += c;
      text.remove_prefix(bytes);
    }
    return result;
  }

  const NameList names_;
  size_t width_ = 0;
};

// A name in single quotes, as Python writes it.
std::string python_text(const std::string& name) {
  std::string text = "'";
  for (const char c : name) {
    if (c == '\'' || c == '\\') text += '\\';
    text += c;
  }
  return text + "'";
}

class NpyWriter : public RecommendationWriter {
 public:
  NpyWriter(OutputFile& out, const RecommendationFormat& format)
      : k_(format.k), users_(format.user_names), items_(format.item_names), out_(out) {
    const char* score = format.dtype == at::kDouble ? "<f8" : "<f4";
    std::string header = str("{'descr': [(", python_text(format.user), ", '", users_.type(), "'), (",
                             python_text(format.item), ", '", items_.type(), "', (", k_, ",)), ('score', '", score,
                             "', (", k_, ",))], 'fortran_order': False, 'shape': (", format.users, ",), }");
    // Version 3.0: UTF-8, and a length of four bytes. The header ends with a newline at a multiple of 64.
    constexpr size_t prefix = 12;
    header.append(63 - (prefix + header.size()) % 64, ' ');
    header += '\n';
    const auto length = static_cast<uint32_t>(header.size());
    std::string start;
    start.append("\x93NUMPY\x03\x00", 8);
    start.append(reinterpret_cast<const char*>(&length), sizeof length);
    out_.write(start + header);
  }
  void write(const int64_t* users, const TopItems& top) override {
    const int64_t k = top.items.size(1);
    const int64_t* items = top.items.const_data_ptr<int64_t>();
    const auto* scores = static_cast<const char*>(top.scores.const_data_ptr());
    const size_t bytes = size_t(k) * top.scores.element_size();
    CONVOY_CHECK(k == k_, "lists of ", k, " items in a file of ", k_);
    std::string record;
    for (int64_t row = 0; row < top.items.size(0); ++row) {
      record.clear();
      users_.append(record, users[row]);
      for (int64_t index = 0; index < k; ++index) items_.append(record, items[row * k + index]);
      record.append(scores + size_t(row) * bytes, bytes);
      out_.write(record);
    }
  }

 private:
  const int64_t k_;
  const NpyIds users_, items_;
  OutputFile& out_;
};

// The caller commits `out` after the last list. Error(command_line) if the name of `out` has another ending.
std::unique_ptr<RecommendationWriter> make_recommendation_writer(OutputFile& out, RecommendationFormat format) {
  if (ends_in(out.path(), ".csv")) return std::make_unique<CsvWriter>(out, format);
  if (ends_in(out.path(), ".jsonl")) return std::make_unique<JsonLinesWriter>(out, std::move(format));
  check_output_ending(out.path(), {".npy", ".csv", ".jsonl"}, "--to");
  return std::make_unique<NpyWriter>(out, format);
}

}  // namespace

// --- UserFile ---

namespace {

bool has_tabs(const std::string& path) {
  return ends_in(path, ".tsv") || ends_in(path, ".inter") || ends_in(path, ".user");
}

// A line of the file, by the hash of its id.
struct HashedLine {
  uint64_t hash = 0;
  int64_t line = 0;
  bool operator<(const HashedLine& other) const { return hash < other.hash; }
};

uint64_t id_hash(std::string_view id) { return std::hash<std::string_view>()(id); }

}  // namespace

UserFile::UserFile(const std::string& path, const std::string& user_column, const NameList& names, int64_t users,
                   const std::vector<std::string>& contexts, const Preparation* preparation)
    : file_(path),
      delimiter_(has_tabs(path) ? '\t' : ','),
      typed_(ends_in(path, ".inter") || ends_in(path, ".user")),
      preparation_(preparation) {
  read_header(user_column, contexts);
  find_numbers(names, users);
  if (numbers_.empty()) throw Error(Failure::corrupt_data, path, ": has no users; give one id a line");
  if (!has_contexts()) return;
  reading_.emplace(lines());
  if (preparation_ != nullptr) raw_.emplace(*preparation_);
}

DelimitedReader UserFile::lines() const {
  DelimitedReader reader(file_.path(), file_.text(), delimiter_);
  if (header_) reader.next();
  return reader;
}

void UserFile::read_header(const std::string& user_column, const std::vector<std::string>& contexts) {
  DelimitedReader reader(file_.path(), file_.text(), delimiter_);
  if (!reader.next()) return;
  std::vector<std::string> names;
  for (size_t column = 0; column < reader.columns(); ++column) {
    std::string name(reader.field(column));
    if (typed_) name = name.substr(0, name.rfind(':'));
    names.push_back(name);
  }
  const auto index_of = [&](const std::string& name) {
    return size_t(std::find(names.begin(), names.end(), name) - names.begin());
  };
  header_ = index_of(user_column) < names.size();
  if (!header_) {
    if (names.size() > 1)
      throw Error(Failure::corrupt_data, file_.path(), ":1: has ", names.size(), " columns and none of them is '",
                  user_column, "', the column of users; name it in the first line, or give one id a line");
    return;
  }
  user_column_ = index_of(user_column);
  std::vector<std::string> missing;
  for (const std::string& context : contexts) {
    if (index_of(context) < names.size())
      context_columns_.push_back(index_of(context));
    else
      missing.push_back(context);
  }
  if (!context_columns_.empty() && !missing.empty())
    throw Error(Failure::corrupt_data, file_.path(), ":1: has some of the context columns and lacks ",
                join(missing, ", "), "; give all of them, or none to take each user's last interaction");
  for (size_t column = 0; column < names.size(); ++column)
    if (column != user_column_ &&
        std::find(context_columns_.begin(), context_columns_.end(), column) == context_columns_.end())
      ignored_.push_back(names[column]);
}

void UserFile::find_numbers(const NameList& names, int64_t users) {
  DelimitedReader reader = lines();
  std::vector<HashedLine> hashed;
  std::vector<std::string_view> ids;
  const int64_t first_line = header_ ? 2 : 1;
  while (reader.next()) {
    const std::string_view id = reader.field(user_column_);
    int32_t number = -1;
    if (names.size() == 0) {
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
      if (error != std::errc() || end != id.data() + id.size() || number >= users) number = -1;
    } else {
      hashed.push_back({id_hash(id), int64_t(numbers_.size())});
      ids.push_back(id);
    }
    numbers_.push_back(number);
  }
  std::sort(hashed.begin(), hashed.end());
  for (int64_t number = 0; number < names.size(); ++number) {
    const std::string_view name = names[number];
    const auto [from, to] = std::equal_range(hashed.begin(), hashed.end(), HashedLine{id_hash(name), 0});
    for (auto line = from; line != to; ++line)
      if (ids[size_t(line->line)] == name) numbers_[size_t(line->line)] = int32_t(number);
  }
  const auto unknown = std::count(numbers_.begin(), numbers_.end(), -1);
  if (unknown == 0) return;
  const int64_t line = std::find(numbers_.begin(), numbers_.end(), -1) - numbers_.begin();
  const std::string id = names.size() == 0 ? "" : str(" '", std::string(ids[size_t(line)]), "'");
  throw Error(Failure::corrupt_data, file_.path(), ":", first_line + line, ": user", id, " is not among the ", users,
              " users of the training data", unknown > 1 ? str(", nor are ", unknown - 1, " more") : "",
              "; leave them out, or train with their interactions");
}

float UserFile::context_of(size_t index) const {
  const size_t column = context_columns_[index];
  if (preparation_ == nullptr || preparation_->raw_width() == 0) return float_of(*reading_, column, "context");
  if (const std::optional<float> value = raw_->read(*reading_, column, index, "context")) return *value;
  const PreparedColumn& how = preparation_->columns()[index];
  const std::string_view word = raw_word(*reading_, column, how.fills);
  reading_->fail(column, str("'", std::string(word), "' is no category of the training data in column ", how.name,
                             "; leave its line out, or train with it"));
}

at::Tensor UserFile::next_contexts(int64_t lines) {
  at::Tensor contexts = at::empty({lines, int64_t(context_columns_.size())}, at::TensorOptions(at::kFloat));
  auto* to = contexts.mutable_data_ptr<float>();
  for (int64_t line = 0; line < lines; ++line) {
    CONVOY_CHECK(reading_ && reading_->next(), "the file of users changed");
    for (size_t i = 0; i < context_columns_.size(); ++i) *to++ = context_of(i);
  }
  return contexts;
}

// --- Recommender ---

namespace {

// The items of each user, sorted, each once; and the user's last interaction.
class Histories {
 public:
  explicit Histories(const Interactions& all)
      : begin_(size_t(all.users) + 1), count_(size_t(all.users)), last_(size_t(all.users), -1) {
    const int32_t *user = all.user.const_data_ptr<int32_t>(), *item = all.item.const_data_ptr<int32_t>();
    const double* time = all.time.defined() ? all.time.const_data_ptr<double>() : nullptr;
    for (int64_t row = 0; row < all.size(); ++row) {
      ++count_[size_t(user[row])];
      int32_t& last = last_[size_t(user[row])];
      if (last < 0 || time == nullptr || time[row] >= time[last]) last = int32_t(row);
    }
    for (size_t u = 0; u < count_.size(); ++u) begin_[u + 1] = begin_[u] + count_[u];
    items_.resize(size_t(all.size()));
    std::fill(count_.begin(), count_.end(), 0);
    for (int64_t row = 0; row < all.size(); ++row)
      items_[size_t(begin_[size_t(user[row])] + count_[size_t(user[row])]++)] = item[row];
    for (size_t u = 0; u < count_.size(); ++u) {
      const auto from = items_.begin() + begin_[u], to = from + count_[u];
      std::sort(from, to);
      count_[u] = int32_t(std::unique(from, to) - from);
    }
  }

  ItemRanking::Seen of(int64_t user) const {
    const int32_t* from = items_.data() + begin_[size_t(user)];
    return {from, from + count_[size_t(user)]};
  }
  int64_t count(int64_t user) const { return count_[size_t(user)]; }
  int32_t last(int64_t user) const { return last_[size_t(user)]; }  // row; −1: the user has none

 private:
  std::vector<int64_t> begin_;
  std::vector<int32_t> count_, last_, items_;
};

class Recommending {
 public:
  Recommending(const Interactions& all, PairScorer& scorer, const RecommendOptions& options)
      : all_(all),
        options_(options),
        ranking_(scorer, all.items, options.prepared ? options.prepared->item_features : all.item_features),
        histories_(all) {
    if (options.k < 1) throw Error(Failure::command_line, "--k: is ", options.k, ", must be at least 1");
    if (options.k > all.items)
      throw Error(Failure::command_line, "--k: is ", options.k, ", and the run has ", all.items,
                  " items; give at most ", all.items);
    if (!options.users.empty()) {
      file_.emplace(options.users, options.user_column, all.user_names, all.users, all.context_names,
                    options.prepared ? &options.prepared->context : nullptr);
      users_ = file_->numbers();
    } else {
      for (int64_t user = 0; user < all.users; ++user)
        if (histories_.last(user) >= 0) users_.push_back(int32_t(user));
    }
    check_contexts();
  }

  const std::vector<int32_t>& users() const { return users_; }
  const std::optional<UserFile>& file() const { return file_; }

  // The lists of users [begin, begin + rows). Batches come in order.
  TopItems lists(int64_t begin, int64_t rows, std::vector<int64_t>& numbers,
                 const std::function<void(int64_t items)>& progress) {
    numbers.assign(users_.begin() + begin, users_.begin() + begin + rows);
    const Batch batch = batch_of(numbers);
    std::vector<ItemRanking::Seen> seen;
    if (!options_.include_seen)
      for (const int64_t user : numbers) seen.push_back(histories_.of(user));
    TopItems top = ranking_.best(batch, options_.k, seen, progress);
    for (int64_t row = 0; row < rows; ++row) check_list(numbers[size_t(row)], top.counts[row].item<int64_t>());
    return top;
  }

 private:
  bool has_contexts() const { return file_ && file_->has_contexts(); }
  std::string name_of(int64_t user) const {
    return all_.user_names.size() == 0 ? std::to_string(user) : std::string(all_.user_names[user]);
  }

  void check_contexts() const {
    if (all_.contexts() == 0 || has_contexts()) return;
    for (const int32_t user : users_)
      if (histories_.last(user) < 0)
        throw Error(Failure::corrupt_data, "user '", name_of(user),
                    "' has no interaction, so there is no context; add the context columns to --users");
  }

  // A list is shorter only if the user already has nearly all items.
  void check_list(int64_t user, int64_t count) const {
    const int64_t left = all_.items - (options_.include_seen ? 0 : histories_.count(user));
    if (count >= std::min(left, options_.k)) return;
    throw Error(Failure::training, "the model's scores for user ", name_of(user),
                " are not numbers (NaN); train again with a smaller rate, or take an earlier checkpoint");
  }

  at::Tensor prepared_contexts(const at::Tensor& raw) const {
    return options_.prepared ? options_.prepared->context.applied(raw) : raw;
  }

  Batch batch_of(const std::vector<int64_t>& numbers) {
    const auto rows = int64_t(numbers.size());
    Batch batch;
    batch.rows = batch.global_rows = batch.nominal_rows = rows;
    const at::Tensor ids =
        at::from_blob(const_cast<int64_t*>(numbers.data()), {rows}, at::TensorOptions(at::kLong)).clone();
    batch.tensors.emplace_back("user", ids);
    if (has_contexts()) {
      batch.tensors.emplace_back("context", prepared_contexts(file_->next_contexts(rows)));
    } else if (all_.contexts() > 0) {
      at::Tensor last = ids.clone();
      auto* row = last.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < rows; ++i) row[i] = histories_.last(row[i]);
      batch.tensors.emplace_back("context", prepared_contexts(all_.context.index_select(0, last)));
    }
    if (const at::Tensor& features = options_.prepared ? options_.prepared->user_features : all_.user_features;
        features.defined())
      batch.tensors.emplace_back("user_features", features.index_select(0, ids));
    return batch;
  }

  const Interactions& all_;
  const RecommendOptions& options_;
  ItemRanking ranking_;
  const Histories histories_;
  std::optional<UserFile> file_;
  std::vector<int32_t> users_;
};

}  // namespace

RecommendReport recommend(const Interactions& all, PairScorer& scorer, const RecommendOptions& options, OutputFile& out,
                          const std::function<void(const RecommendProgress&)>& progress) {
  Recommending recommending(all, scorer, options);
  const auto total = int64_t(recommending.users().size());
  RecommendationFormat format;
  format.user = options.user_column;
  format.item = options.item_column;
  format.user_names = all.user_names;
  format.item_names = all.item_names;
  format.users = total;
  format.k = options.k;
  format.dtype = scorer.dtype();
  const auto writer = make_recommendation_writer(out, format);
  RecommendReport report;
  std::vector<int64_t> numbers;
  // Many items make a block smaller, because its lists are written at its end. It has at least 16 users, because terms
  // of items that are not cached are computed again for each block.
  constexpr int64_t least = 16;
  const int64_t together = std::clamp(most_pairs_together / std::max<int64_t>(all.items, 1), least, users_together);
  for (int64_t begin = 0; begin < total; begin += together) {
    const int64_t rows = std::min(together, total - begin);
    const TopItems top = recommending.lists(begin, rows, numbers, [&](int64_t items) {
      if (progress) progress({begin, total, rows, items, all.items});
    });
    report.shorter += top.counts.lt(options.k).sum().item<int64_t>();
    writer->write(numbers.data(), top);
    if (progress) progress({begin + rows, total, 0, 0, all.items});
  }
  out.commit();
  report.users = total;
  if (recommending.file()) {
    report.ignored_columns = recommending.file()->ignored();
    report.contexts_from_file = recommending.file()->has_contexts();
  }
  return report;
}

}  // namespace convoy
