#include "core/ranking/user_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/formats/npy_header.h"

namespace convoy {
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

}  // namespace convoy
