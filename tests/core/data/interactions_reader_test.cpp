// Reads interactions from text, and from its cache.
#include "core/data/readers/interactions_reader.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/data/sets/features.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

InteractionColumns typed() {
  InteractionColumns columns;
  columns.typed_header = true;
  columns.delimiter = '\t';
  return columns;
}

InteractionColumns csv() {
  InteractionColumns columns;
  columns.user = "who";
  columns.item = "what";
  columns.time = "when";
  columns.context = {"a", "b"};
  columns.weight = "w";
  return columns;
}

const char* const small =
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "u9\ti5\t3\t100\n"
    "u2\ti5\t1\t90.5\n"
    "u9\ti1\t4\t80\n";

std::string failure(const std::string& text, const InteractionColumns& columns) {
  try {
    parse_interactions("f.csv", text, columns);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), tensor.const_data_ptr<T>() + tensor.numel()};
}

TEST(InteractionsReader, NumbersIdsByFirstAppearance) {
  const auto all = parse_interactions("f.inter", small, typed());
  EXPECT_EQ(all.users, 2);
  EXPECT_EQ(all.items, 2);
  EXPECT_EQ(values<int32_t>(all.user), (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(values<int32_t>(all.item), (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(values<double>(all.time), (std::vector<double>{100, 90.5, 80}));
  EXPECT_FALSE(all.context.defined() || all.weight.defined());
}

// Short words, words with equal beginnings, and more words than the table's first capacity.
TEST(InteractionsReader, ReadsManyIdsOfAllLengths) {
  std::vector<std::string> words;
  for (int number = 0; number < 4000; ++number) {
    words.push_back(std::to_string(number));
    words.push_back("visitor-" + std::to_string(number) + "@example");
    if (number < 8) words.push_back(std::string(static_cast<size_t>(number + 1), 'v'));
  }
  std::string text = "user_id:token\titem_id:token\ttimestamp:float\n";
  for (int time = 0; time < 2; ++time)
    for (const std::string& word : words) text += word + "\t" + word.substr(0, 1) + "\t1\n";
  const auto all = parse_interactions("f.inter", text, typed());
  ASSERT_EQ(all.users, static_cast<int64_t>(words.size()));
  EXPECT_EQ(all.items, 10 + 1);  // digits and v
  const std::vector<int32_t> users = values<int32_t>(all.user);
  for (size_t row = 0; row < users.size(); ++row)
    ASSERT_EQ(users[row], static_cast<int32_t>(row % words.size())) << row;
}

TEST(InteractionsReader, CsvWithContextWeightQuotesAndWindowsLineEnds) {
  const auto all = parse_interactions(
      "f.csv", "\xEF\xBB\xBFwhat,who,when,a,b,w\r\n\"x, y\",1, 7 ,0.5,-2,1\r\nz,\"1\",8,1e3,0,2.5\r\n\r\n", csv());
  EXPECT_EQ(all.users, 1);
  EXPECT_EQ(all.items, 2);
  EXPECT_EQ(values<float>(all.context), (std::vector<float>{0.5f, -2.f, 1000.f, 0.f}));
  EXPECT_EQ(values<float>(all.weight), (std::vector<float>{1.f, 2.5f}));
  EXPECT_EQ(values<double>(all.time), (std::vector<double>{7, 8}));
}

TEST(InteractionsReader, NamesColumnsByNumberWithoutAHeader) {
  InteractionColumns columns;
  columns.header = false;
  columns.user = "2";
  columns.item = "1";
  const auto all = parse_interactions("f.csv", "i1,u1\ni2,u1\n", columns);
  EXPECT_EQ(all.size(), 2);
  EXPECT_EQ(all.users, 1);
}

TEST(InteractionsReader, ReportsErrorsWithFileLineAndColumn) {
  using ::testing::HasSubstr;
  const std::string head = "who,what,when,a,b,w\n";
  EXPECT_THAT(failure(head + "u,i,1,0,0,1\nu,i,x7,0,0,1\n", csv()),
              HasSubstr("f.csv:3:5: 'x7' is not a number; data.columns.time takes"));
  EXPECT_THAT(failure(head + "u,i,1,0,,1\n", csv()),
              HasSubstr("f.csv:2:9: a number is missing; data.columns.context takes"));
  EXPECT_THAT(failure(head + "u,i,1,nan,0,1\n", csv()), HasSubstr("f.csv:2:7: 'nan' marks a missing number"));
  EXPECT_THAT(failure(head + "u,i,1,inf,0,1\n", csv()), HasSubstr("f.csv:2:7: 'inf' is not finite"));
  EXPECT_THAT(failure(head + "u,i,1,0,1e999,1\n", csv()), HasSubstr("f.csv:2:9: '1e999' is out of range"));
  EXPECT_THAT(failure(head + "u,i,1,0,0\n", csv()), HasSubstr("f.csv:2:10: 5 fields where the first line has 6"));
  EXPECT_THAT(failure(head + "u,i,1,0,0,1,9\n", csv()), HasSubstr("f.csv:2:13: 7 fields"));
  EXPECT_THAT(failure(head + ",i,1,0,0,1\n", csv()), HasSubstr("f.csv:2:1: the user is missing"));
  EXPECT_THAT(failure(head + "u,,1,0,0,1\n", csv()), HasSubstr("f.csv:2:3: the item is missing"));
  EXPECT_THAT(failure(head + "u,i,1,0,0,-1\n", csv()), HasSubstr("f.csv:2:11: a weight is negative"));
  EXPECT_THAT(failure(head + "\nu,i,1,0,0,1\n", csv()), HasSubstr("f.csv:2:1: a blank line"));
  EXPECT_THAT(failure(head + "\"u,i,1,0,0,1\n", csv()), HasSubstr("f.csv:2:1: a quoted field"));
  EXPECT_THAT(failure(head + "\"u\"x,i,1,0,0,1\n", csv()), HasSubstr("f.csv:2:4: text after"));
  EXPECT_THAT(failure("", csv()), HasSubstr("f.csv: is empty"));
  EXPECT_THAT(failure(head, csv()), HasSubstr("no interactions"));
  EXPECT_THAT(failure("who,what,when,a,a,w\n", csv()), HasSubstr("f.csv:1:17: two columns are called 'a'"));
  EXPECT_THAT(failure("who,waht,when,a,b,w\n", csv()), HasSubstr("no column 'what' (data.columns.item)"));
  EXPECT_THAT(failure("who,waht,when,a,b,w\n", csv()), HasSubstr("did you mean waht?"));
  EXPECT_THAT(failure("user_id\titem_id:token\n", typed()), HasSubstr("f.csv:1:1: 'user_id' has no type"));
  EXPECT_THAT(failure("user_id:token\titem_id:tocken\n", typed()), HasSubstr("f.csv:1:15: unknown type 'tocken'"));
  EXPECT_THAT(failure("user_id:float\titem_id:token\n", typed()), HasSubstr("is a float"));
}

InteractionColumns priced() {
  InteractionColumns columns;
  columns.item_features = {"price", "size"};
  columns.user_features = {"age"};
  return columns;
}

TEST(InteractionsReader, RefusesSeveralFeatureValuesPerId) {
  const auto all =
      parse_interactions("f.csv", "age,user_id,item_id,price,size\n30,u,i,1.5,7\n41,v,j,2,8\n41,v,i,1.5,7\n", priced());
  EXPECT_EQ(values<float>(all.item_features), (std::vector<float>{1.5f, 7, 2, 8}));
  EXPECT_EQ(values<float>(all.user_features), (std::vector<float>{30, 41}));
  EXPECT_EQ(all.item_names[1], "j");
  EXPECT_THAT(failure("age,user_id,item_id,price,size\n30,u,i,1.5,7\n31,v,i,1.5,7.5\n", priced()),
              ::testing::HasSubstr("f.csv:3:12: differs from an earlier line of item 'i'; a column of "
                                   "data.columns.item_features has one value per item"));
  EXPECT_THAT(failure("age,user_id,item_id,price,size\n30,u,i,1.5,7\n31,u,j,1.5,7\n", priced()),
              ::testing::HasSubstr("f.csv:3:1: differs from an earlier line of user 'u'"));
  EXPECT_THAT(failure("age,user_id,item_id,price,size\n30,u,i,cheap,7\n", priced()),
              ::testing::HasSubstr("f.csv:2:8: 'cheap' is not a number; data.columns.item_features takes"));
  EXPECT_THAT(failure("age,user_id,item_id,price,size\n30,u,i,1e300,7\n", priced()),
              ::testing::HasSubstr("f.csv:2:8: '1e300' does not fit into a 32-bit real"));
}

// Text for several threads: the values of an id that they read are merged.
TEST(InteractionsReader, MergesFeaturesOfAllChunksOfAFile) {
  InteractionColumns columns = priced();
  columns.context = {"clock"};
  const std::string head = "age,user_id,item_id,price,size,clock\n";
  std::string text = head;
  for (int line = 0; text.size() < (3 << 20); ++line)
    text += str(line % 7, ",u", line % 7, ",i", line % 1000, ",", line % 1000, ".5,-1,", line % 13, "\n");
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const auto all = parse_interactions("f.csv", text, columns);
  const std::string wrong = failure(text + "0,u0,i999,998.5,-1,0\n", columns);
  at::set_num_threads(threads);
  ASSERT_EQ(all.items, 1000);
  EXPECT_TRUE(at::equal(all.item_features.select(1, 0), at::arange(1000, at::kFloat) + 0.5));
  EXPECT_TRUE(at::equal(all.user_features.flatten(), at::arange(7, at::kFloat)));
  EXPECT_EQ(values<uint8_t>(all.context_kinds), (std::vector<uint8_t>{uint8_t(ContextKind::of_interaction)}));
  EXPECT_THAT(wrong, ::testing::HasSubstr(":11: differs from an earlier line of item 'i999'"));
}

TEST(InteractionsReader, FindsContextOfItemsOrUsers) {
  InteractionColumns columns;
  columns.context = {"hour", "price", "age", "version"};
  std::string text = "user_id,item_id,hour,price,age,version\n";
  for (int line = 0; line < 24; ++line)
    text += str("u", line % 5, ",i", line % 6, ",", line % 4, ",", line % 6, ",", line % 5, ",3\n");
  const auto all = parse_interactions("f.csv", text, columns);
  EXPECT_EQ(values<uint8_t>(all.context_kinds),
            (std::vector<uint8_t>{uint8_t(ContextKind::of_interaction), uint8_t(ContextKind::of_item),
                                  uint8_t(ContextKind::of_user), uint8_t(ContextKind::same_everywhere)}));
  // Each item occurs once, so nothing shows its context.
  columns.context = {"price"};
  const auto few = parse_interactions("f.csv", "user_id,item_id,price\nu,i,1\nv,j,2\nw,k,3\n", columns);
  EXPECT_EQ(values<uint8_t>(few.context_kinds), (std::vector<uint8_t>{uint8_t(ContextKind::of_interaction)}));
}

FeatureFile items_file() {
  FeatureFile file;
  file.option = "data.item_features";
  file.entity = "item";
  file.path = "items.csv";
  file.id = "item_id";
  return file;
}

std::string features_failure(const std::string& text, const FeatureFile& file,
                             const std::vector<std::string>& items = {}) {
  try {
    features_of({parse_features(file, text)}, NameList(items), "item");
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

TEST(Features, AreJoinedByIdWithoutOtherLines) {
  const Features features = parse_features(items_file(), "price,item_id,size\n1,i,7\n2,j,8\n3,k,9\n");
  EXPECT_EQ(features.names, (std::vector<std::string>{"price", "size"}));
  const std::vector<std::string> ids{"k", "i"};
  EXPECT_EQ(values<float>(features_of({features, features}, NameList(ids), "item")),
            (std::vector<float>{3, 9, 3, 9, 1, 7, 1, 7}));
  FeatureFile some = items_file();
  some.columns = {"size"};
  EXPECT_EQ(values<float>(parse_features(some, "name,item_id,size\nx,i,7\n").values), (std::vector<float>{7}));
}

TEST(Features, ReportErrorsWithFileLineAndColumn) {
  using ::testing::HasSubstr;
  const FeatureFile file = items_file();
  EXPECT_THAT(features_failure("item_id,price\ni,1\nj,x\n", file),
              HasSubstr("items.csv:3:3: 'x' is not a number; data.item_features.columns takes a column of numbers"));
  EXPECT_THAT(features_failure("item_id,price\ni,1\nj,2\ni,1\n", file),
              HasSubstr("items.csv:4:1: item 'i' has a line already, line 2"));
  EXPECT_THAT(features_failure("item_id,price\n,1\n", file), HasSubstr("items.csv:2:1: the item is missing"));
  EXPECT_THAT(features_failure("item_id,price\ni,1,2\n", file), HasSubstr("items.csv:2:5: 3 fields"));
  EXPECT_THAT(features_failure("item,price\ni,1\n", file), HasSubstr("no column 'item_id' (data.item_features.id)"));
  EXPECT_THAT(features_failure("item_id\ni\n", file), HasSubstr("items.csv:1: has only the column of ids 'item_id'"));
  EXPECT_THAT(features_failure("item_id,price\n", file), HasSubstr("holds no lines but its header"));
  EXPECT_THAT(features_failure("item_id,price\ni,1\n", file, {"i", "j", "k"}),
              HasSubstr("items.csv: has no price for item 'j' and 1 more of 3 items"));
}

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / str("convoy-cache-", getpid());
    fs::create_directories(folder_);
    write(small);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& text) { std::ofstream(source(), std::ios::trunc) << text; }
  std::string source() const { return (folder_ / "f.inter").string(); }
  std::string cache() const { return source() + ".cache.safetensors"; }

  fs::path folder_;
};

TEST_F(Cache, ReturnsTheParsedData) {
  const auto parsed = read_interactions(source(), typed());
  ASSERT_TRUE(fs::exists(cache()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);  // no temporary is left
  const auto written = fs::last_write_time(cache());
  const auto cached = read_interactions(source(), typed());
  EXPECT_EQ(fs::last_write_time(cache()), written);
  EXPECT_TRUE(at::equal(parsed.user, cached.user) && at::equal(parsed.item, cached.item));
  EXPECT_TRUE(at::equal(parsed.time, cached.time));
  EXPECT_EQ(cached.users, 2);
  EXPECT_EQ(cached.items, 2);
}

TEST_F(Cache, StoresFeaturesAndFollowsTheirFile) {
  write("user_id:token\titem_id:token\tage:float\nu9\ti5\t3\nu2\ti1\t1\nu9\ti1\t3\n");
  auto columns = typed();
  columns.user_features = {"age"};
  FeatureFile file = items_file();
  file.path = (folder_ / "f.item").string();
  file.typed_header = true;
  file.delimiter = '\t';
  const auto prices = [&](const char* first) {
    std::ofstream(file.path) << "item_id:token\tprice:float\ni1\t" << first << "\ni5\t2\n";
    std::vector<float> each;
    for (int time = 0; time < 2; ++time) {  // parsed, then from the cache
      Interactions all = read_interactions(source(), columns);
      EXPECT_EQ(values<float>(all.user_features), (std::vector<float>{3, 1}));
      add_features(all, file, {});
      const std::vector<float> now = values<float>(all.item_features);
      EXPECT_TRUE(time == 0 || now == each);
      each = now;
    }
    return each;
  };
  EXPECT_EQ(prices("1"), (std::vector<float>{2, 1}));
  EXPECT_TRUE(fs::exists(file.path + ".cache.safetensors"));
  EXPECT_EQ(prices("4"), (std::vector<float>{2, 4}));
}

TEST_F(Cache, IsUsed) {
  // A cache with other contents and the right hashes is accepted, which shows that the cache is read.
  read_interactions(source(), typed());
  const auto parse = []() -> Columns {
    ADD_FAILURE() << "parsed again";
    return {};
  };
  const auto parsed = cached_columns(MappedFile(source()), "interactions " + typed().cache_key(), parse,
                                     [](const Columns&) { return true; });
  EXPECT_EQ(parsed.count("user"), 1u);
}

TEST_F(Cache, IsRebuiltWhenItsSourceChanges) {
  read_interactions(source(), typed());
  write(std::string(small) + "u7\ti1\t4\t80\n");
  EXPECT_EQ(read_interactions(source(), typed()).users, 3);
  EXPECT_EQ(read_interactions(source(), typed()).users, 3);
}

TEST_F(Cache, IsRebuiltWhenOptionsChange) {
  read_interactions(source(), typed());
  auto columns = typed();
  columns.weight = "rating";
  EXPECT_TRUE(read_interactions(source(), columns).weight.defined());
  EXPECT_FALSE(read_interactions(source(), typed()).weight.defined());
}

TEST_F(Cache, IsRebuiltWhenDamaged) {
  const auto parsed = read_interactions(source(), typed());
  std::ifstream in(cache(), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  for (size_t place = 0; place < good.size(); place += 7) {
    std::string bad = good;
    bad[place] = char(bad[place] ^ 0x20);
    std::ofstream(cache(), std::ios::binary | std::ios::trunc) << bad;
    const auto again = read_interactions(source(), typed());
    ASSERT_TRUE(at::equal(parsed.user, again.user) && at::equal(parsed.time, again.time)) << "byte " << place;
  }
  std::ofstream(cache(), std::ios::binary | std::ios::trunc) << good.substr(0, good.size() / 2);
  EXPECT_TRUE(at::equal(parsed.user, read_interactions(source(), typed()).user));
}

// A cache with changed columns and the right hashes, as an attacker who knows the format would write it.
void forge(const std::string& path, const std::function<void(Columns&)>& change) {
  std::map<std::string, std::string> facts;
  Columns columns;
  {
    const SafetensorsFile file(path);
    facts = file.metadata();
    for (const std::string& name : file.names()) columns[name] = file.tensor(name).clone();
  }
  change(columns);
  Hasher hasher;
  for (const auto& [name, tensor] : columns) {
    hasher.add(name.data(), name.size());
    hasher.add(tensor.const_data_ptr(), tensor.nbytes());
  }
  facts["contents"] = hasher.hex();
  fs::remove(path);
  write_safetensors(path, {columns.begin(), columns.end()}, facts);
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Cache, RefusesForgedNumbersOutOfRange) {
  const auto parsed = read_interactions(source(), typed());
  const auto set = [](const char* column, int64_t index, int64_t value) {
    return [=](Columns& columns) { columns[column][index] = value; };
  };
  const std::pair<const char*, std::function<void(Columns&)>> changes[] = {
      {"item -1", set("item", 1, -1)},
      {"user -1", set("user", 0, -1)},
      {"item above all", set("item", 2, 2)},
      {"huge user", set("user", 2, 2147483647)},
      {"more users than names", set("counts", 0, 1 << 30)},
      {"negative count", set("counts", 1, -2)},
      {"a name that ends outside", set("user_ends", 1, 1000)},
      {"names in disorder", set("item_ends", 0, 5)},
      {"fewer items than rows", [](Columns& columns) { columns["item"] = columns["item"].slice(0, 0, 2).clone(); }},
      {"wide users", [](Columns& columns) { columns["user"] = columns["user"].to(at::kLong); }},
      {"no time", [](Columns& columns) { columns["time"] = columns["time"].to(at::kFloat); }},
      {"nothing", [](Columns& columns) { columns.clear(); }},
  };
  for (const auto& [what, change] : changes) {
    forge(cache(), change);
    const auto again = read_interactions(source(), typed());
    EXPECT_TRUE(at::equal(parsed.user, again.user) && at::equal(parsed.item, again.item)) << what;
    EXPECT_TRUE(at::equal(parsed.time, again.time) && again.user_names == parsed.user_names) << what;
  }
  // Within the ranges it is accepted, because it belongs to the user. So the cases above fail because of their numbers.
  forge(cache(), set("item", 1, 1));
  EXPECT_FALSE(at::equal(parsed.item, read_interactions(source(), typed()).item));
}

TEST_F(Cache, IgnoresACacheWritableByOthers) {
  const auto parsed = read_interactions(source(), typed());
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write}) {
    forge(cache(), [](Columns& columns) { columns["item"][1] = 1; });
    fs::permissions(cache(), others, fs::perm_options::add);
    EXPECT_TRUE(at::equal(parsed.item, read_interactions(source(), typed()).item));
    EXPECT_EQ(fs::status(cache()).permissions() & (fs::perms::group_write | fs::perms::others_write), fs::perms::none);
  }
  const mode_t before = umask(0);
  fs::remove(cache());
  read_interactions(source(), typed());
  umask(before);
  const auto written = fs::last_write_time(cache());
  read_interactions(source(), typed());
  EXPECT_EQ(fs::last_write_time(cache()), written) << "a cache written under umask 0 is of no use";
}

TEST_F(Cache, IgnoresTheCacheOfADifferentUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give a file away";
  const auto parsed = read_interactions(source(), typed());
  forge(cache(), [](Columns& columns) { columns["item"][1] = 1; });
  ASSERT_EQ(chown(cache().c_str(), 12345, 12345), 0);
  const char* home = getenv("XDG_CACHE_HOME");
  const std::string saved = home != nullptr ? home : "";
  setenv("XDG_CACHE_HOME", (folder_ / "own").c_str(), 1);
  EXPECT_TRUE(at::equal(parsed.item, read_interactions(source(), typed()).item));
  home != nullptr ? setenv("XDG_CACHE_HOME", saved.c_str(), 1) : unsetenv("XDG_CACHE_HOME");
  struct stat facts {};
  ASSERT_EQ(stat(cache().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_uid, 12345u) << "another user's file was replaced";
  EXPECT_FALSE(fs::is_empty(folder_ / "own" / "convoy"));
}

TEST_F(Cache, OverwritesLeftoversOfAKilledProcess) {
  std::ofstream(cache() + ".partial") << "half";
  read_interactions(source(), typed());
  EXPECT_TRUE(fs::exists(cache()));
  EXPECT_FALSE(fs::exists(cache() + ".partial"));
}

TEST_F(Cache, IsSkippedInAReadOnlyFolder) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(read_interactions(source(), typed()).users, 2);
  EXPECT_FALSE(fs::exists(cache()));
  fs::permissions(folder_, fs::perms::owner_all);
}

TEST_F(Cache, ReportsAMissingFile) { EXPECT_THROW(read_interactions(source() + "x", typed()), Error); }

}  // namespace
}  // namespace convoy
