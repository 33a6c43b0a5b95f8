// Catalogue of data sets and transforms. A new one needs an entry here, its class, and a line in core/registry.cpp.

#include "core/data/catalogue/catalogue.h"

#include <algorithm>
#include <set>

#include "core/base/describe.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/token_file.h"

namespace convoy {
namespace {

// --- fashion_mnist ---

Entry fashion_mnist_entry() {
  return {
      "fashion_mnist",
      "70,000 grey images of 28 × 28 in ten classes (or any set in the same IDX files)",
      {describe::text("path",
                      "folder of the four files, gzipped or not; Debian's package dataset-fashion-mnist has them",
                      "/usr/share/datasets/fashion-mnist"),
       describe::boolean("bytes",
                         "batches contain bytes, which the training device converts: a quarter of the transfer, and "
                         "equal results",
                         false)}};
}

// --- images ---

void check_images(const Options& options) {
  if (options.integer("channels") == 2)
    options.fail("channels", "is 2; images are read as grey (1) or as red, green and blue (3)");
}

Entry images_entry() {
  return {"images",
          "a folder with one folder of PNG and JPEG files per class, decoded when needed",
          {describe::text("path", "folder with one folder per class, or with train/ and test/ that have these").must(),
           describe::integer("height", "height of images after resizing", 32).between(1, 16384).in("pixels"),
           describe::integer("width", "width of images after resizing", 32).between(1, 16384).in("pixels"),
           describe::integer("channels", "1: grey; 3: red, green and blue", 3).between(1, 3),
           describe::choice("fit",
                            "crop: scaled until it covers the size, then its middle is cropped; stretch: each side is "
                            "scaled separately",
                            {"crop", "stretch"}, "crop"),
           describe::integer("decoders",
                             "decoding threads of each rank; batches do not depend on their number; auto: one for each "
                             "of the rank's cores")
               .between(1, 1024)
               .in("threads")
               .or_auto(),
           describe::section(
               "evaluate", "evaluation images, if there is no folder test/",
               {describe::real("fraction", "fraction of all images, drawn by the seed", 0.1).between(0, 0.99)})},
          check_images};
}

// --- interactions ---

// The options of a data set of interactions, then those of the ranking.
std::vector<Option> with_ranking_options(std::vector<Option> options, std::vector<Option> evaluate = {}) {
  evaluate.push_back(describe::integer("users", "number of users, drawn by the seed; all by default")
                         .between(1, 2147483647)
                         .may_be_null());
  options.insert(
      options.end(),
      {
          describe::integer("negatives", "items drawn for each positive, again in each epoch", 4).between(0, 100000),
          describe::choice(
              "ranking",
              "how the held-out item is ranked: among drawn candidates, or among all items that are new to the user",
              {"sampled", "full"}, "sampled"),
          describe::integer("candidates", "sampled ranking: distinct items that the user never touched", 99)
              .between(1, 1000000),
          describe::section("evaluate", "evaluated users and their held-out interactions", std::move(evaluate)),
      });
  return options;
}

// Adds the preparation options that the data sets table and interactions share.
std::vector<Option> with_preparation(std::vector<Option> options) {
  options.insert(
      options.end(),
      {describe::choice(
           "scale",
           "standard: numbers become (x − mean) / deviation, by the mean and the deviation of the training "
           "rows; a checkpoint holds both, and evaluate and predict use them",
           {"none", "standard"}, "none"),
       describe::list("categorical", "columns of words or codes: each category becomes one input, which is 1 or 0",
                      describe::text("", "a column")),
       describe::choice("missing",
                        "a missing value (an empty field, NA, N/A, NaN, null, None, ?): refuse: an error; fill: the "
                        "mean of the training rows, and a category of its own in a categorical column",
                        {"refuse", "fill"}, "refuse")});
  return options;
}

// Throws ConfigError if the options contradict each other.
void check_ranking(const Options& options) {
  if (options.text("ranking") == "full")
    refuse_without_effect(
        options, "candidates",
        "needs ranking: sampled, but ranking is full, which ranks every new item; leave one of them out",
        {options.location("ranking")});
}

// Throws ConfigError at a column that the lists name twice.
void check_columns(const Options& options, const std::vector<std::string>& lists) {
  std::set<std::string> named;
  for (const std::string& list : lists) {
    const std::vector<std::string> names = options.texts(list);
    for (size_t index = 0; index < names.size(); ++index)
      if (!named.insert(names[index]).second)
        options.fail(str(list, ".", index), "is ", names[index], " for a second time; name each column once");
  }
}

void check_interactions(const Options& options) {
  check_ranking(options);
  const Options named = options.section("columns");
  check_columns(named, {"context", "item_features", "user_features"});
  const std::vector<std::string> contexts = named.texts("context"), words = options.texts("categorical");
  for (size_t index = 0; index < words.size(); ++index)
    if (std::find(contexts.begin(), contexts.end(), words[index]) == contexts.end())
      options.fail(
          str("categorical.", index),
          str("is ", words[index], ", which columns.context does not list; context columns may be categorical"));
  for (const char* features : {"item_features", "user_features"})
    if (options.has(features)) check_columns(options.section(features), {"columns"});
  const std::string& holdout = options.text("holdout");
  if (holdout == "none") {
    for (const char* key : {"ranking", "candidates", "evaluate"})
      refuse_without_effect(options, key, "needs held-out rows, but holdout is none; leave one of them out",
                            {options.location("holdout")});
    return;
  }
  const Options evaluate = options.section("evaluate");
  if (options.text("ranking") == "sampled" && (holdout == "time" || evaluate.has("fraction"))) {
    const std::string reason =
        " holds out several interactions of a user, and ranking: sampled ranks one; set data.ranking=full";
    if (evaluate.has("fraction")) evaluate.fail("fraction", str("is ", evaluate.real("fraction"), ", which", reason));
    options.fail("holdout", "is time, which" + reason);
  }
}

// Null by default: configurations from before features existed stay unchanged.
Option features_option(const std::string& entity) {
  const auto help = [&](const char* text) { return str(text, entity); };
  return describe::section(
             entity + "_features", help("a file of numbers that describe each "),
             {describe::text("path", help("the file, with one line per ")).must(),
              describe::choice("format", "auto: inter for files that end in .item, .user or .inter, else csv",
                               {"auto", "inter", "csv"}, "auto"),
              describe::text(
                  "delimiter",
                  "separator of fields: one character, or the word tab; by default a tab for inter, a comma for csv")
                  .may_be_null(),
              describe::boolean("header",
                                "csv: the first line has the names of the columns; without it they are named 1, 2, …",
                                true),
              describe::text("id", str("its column of ids; by default the name of columns.", entity)).may_be_null(),
              describe::list("columns", "numbers for the model; by default all columns but the ids",
                             describe::text("", "a column"))})
      .may_be_null();
}

Entry interactions_entry() {
  return {
      "interactions",
      "interactions of users with items, from delimited text: positives, drawn negatives, ranking of a held-out item",
      with_preparation(with_ranking_options(
          {describe::text("path",
                          "the file: .inter with a typed header, or CSV with declared columns; a pattern such as "
                          "day-*.csv or {may,june}.csv means several files with the same columns")
               .must(),
           describe::choice("format", "auto: inter for files that end in .inter, else csv", {"auto", "inter", "csv"},
                            "auto"),
           describe::text(
               "delimiter",
               "separator of fields: one character, or the word tab; by default a tab for inter, a comma for csv")
               .may_be_null(),
           describe::boolean(
               "header", "csv: the first line has the names of the columns; without it they are named 1, 2, …", true),
           describe::section(
               "columns", "names of the columns",
               {describe::text("user", "ids of users", "user_id"), describe::text("item", "ids of items", "item_id"),
                describe::text("time", "times, numbers; by default timestamp if the file has it").may_be_null(),
                describe::list("context",
                               "numbers that describe the interaction, such as the hour; drawn negatives share them",
                               describe::text("", "a column")),
                describe::list("item_features", "numbers that describe the item, also each drawn one",
                               describe::text("", "a column with one value per item")),
                describe::list("user_features", "numbers that describe the user",
                               describe::text("", "a column with one value per user")),
                describe::text("weight", "weights of the interactions: numbers of at least 0").may_be_null()}),
           features_option("item"), features_option("user"),
           describe::choice(
               "holdout",
               "interactions that are held out for evaluation: the latest of each user, or one drawn by the "
               "seed (with evaluate.fraction a share of each user's); time: the latest of all",
               {"latest", "random", "time", "none"}, "latest")},
          {describe::real("fraction",
                          "share of interactions that is held out, of each user; with holdout: time of all, 0.1 by "
                          "default. It needs ranking: full. By default one of each user is held out")
               .above(0)
               .at_most(0.9)
               .may_be_null()})),
      check_interactions};
}

// --- synthetic ---

struct Key {
  const char* name;
  std::vector<std::string> kinds;  // kinds that take the key
};

// All keys except `rows`, which every kind has.
const std::vector<Key>& keys_by_kind() {
  const std::vector<std::string> vectors = {"classification", "regression"}, tokens = {"tokens"},
                                 interactions = {"interactions"};
  static const std::vector<Key> keys = {
      {"evaluate_rows", {"classification", "regression", "tokens"}},
      {"features", vectors},
      {"classes", {"classification"}},
      {"targets", {"regression"}},
      {"noise", vectors},
      {"vocabulary", tokens},
      {"length", tokens},
      {"users", interactions},
      {"items", interactions},
      {"context", interactions},
      {"user_exponent", interactions},
      {"item_exponent", interactions},
      {"preference", interactions},
      {"groups", interactions},
      {"cache", interactions},
      {"negatives", interactions},
      {"ranking", interactions},
      {"candidates", interactions},
      {"evaluate", interactions},
  };
  return keys;
}

void check_synthetic(const Options& options) {
  const std::string& kind = options.text("kind");
  for (const Key& key : keys_by_kind())
    if (std::find(key.kinds.begin(), key.kinds.end(), kind) == key.kinds.end())
      refuse_without_effect(options, key.name,
                            str("needs kind: ", join(key.kinds, ", "), ", but kind is ", kind, "; leave it out"),
                            {options.location("kind")});
  const bool vectors = kind == "classification" || kind == "regression";
  if (vectors && options.integers("features").empty()) options.fail("features", "needs at least one size");
  if (kind != "interactions") return;
  if (options.integer("groups") > options.integer("items")) options.fail("groups", "are more than items");
  check_ranking(options);
}

Entry synthetic_entry() {
  return {
      "synthetic", "synthetic data of any size, from a seed, without files",
      with_ranking_options(
          {describe::choice("kind", "kind of data", {"classification", "regression", "interactions", "tokens"},
                            "classification"),
           describe::integer("rows", "training rows", 10000).between(1, double(int64_t(1) << 40)),
           describe::integer("evaluate_rows", "evaluation rows (interactions: one per user instead)", 1000)
               .between(0, double(int64_t(1) << 40)),
           describe::list("features", "shape of a row's features; [3, 32, 32] gives images",
                          describe::integer("", "a size").between(1, 1 << 24), Json::array({32})),
           describe::integer("classes", "classification: number of classes", 10).between(1, 1 << 24),
           describe::integer("targets", "regression: number of values to predict", 1).between(1, 1 << 24),
           describe::real("noise", "standard deviation of the noise; features are about 1", 1.0).at_least(0),
           describe::integer("vocabulary", "tokens: number of different tokens", 256).between(2, 1 << 24),
           describe::integer("length", "tokens: length of a sequence", 128).between(1, 1 << 24),
           describe::integer("users", "interactions: number of users", 1000).between(1, 2147483647),
           describe::integer("items", "interactions: number of items", 500).between(2, 2147483647),
           describe::integer("context", "interactions: number of context columns", 0).between(0, 100000),
           describe::real("user_exponent", "interactions: exponent of the Zipf distribution of users", 0.6).at_least(0),
           describe::real("item_exponent", "interactions: exponent of the Zipf distribution of items", 0.8).at_least(0),
           describe::real("preference", "interactions: fraction of a user's items that are from the user's group", 0.8)
               .between(0, 1),
           describe::integer("groups", "interactions: number of groups of users and items", 16).between(1, 2147483647),
           describe::text(
               "cache",
               "interactions: folder that stores the columns; later starts map them, and all ranks of a host share "
               "the memory; by default the columns are computed at each start")
               .may_be_null()}),
      check_synthetic};
}

// --- table ---

// Refuses keys that have no effect for this kind of file.
void check_form(const Options& options) {
  const std::string& path = options.text("path");
  const bool npy = ends_in(path, ".npy"), tensors = ends_in(path, ".safetensors");
  const auto refuse = [&](const Options& at, const char* key, const std::string& reason) {
    refuse_without_effect(at, key, reason, {options.location("path")});
  };
  if (npy || tensors)
    for (const char* key : {"delimiter", "header", "categorical"})
      refuse(options, key, "needs text such as .csv, but path has arrays; leave it out");
  if (!npy)
    refuse(options, "target_path",
           "needs .npy, which has one array, but path is not .npy; name the column or tensor by target");
  if (npy && !options.has("target_path"))
    options.fail("path", "is an .npy with the features only; name the .npy with the targets by target_path");
  if (!npy) return;
  for (const char* key : {"features", "target", "weight"})
    refuse(options, key,
           "names a column or tensor, which an .npy does not have; leave it out, or put the arrays into one "
           ".safetensors file");
}

void check_table(const Options& options) {
  delimiter_of(options);
  check_form(options);
  if (options.text("task") == "regression")
    refuse_without_effect(options, "classes",
                          "needs task: classification, but task is regression; leave one of them out",
                          {options.location("task")});
  const Options evaluate = options.section("evaluate");
  if (evaluate.has("path"))
    refuse_without_effect(evaluate, "fraction", "and path both choose the evaluation rows; leave one of them out",
                          {evaluate.location("path")});
  else if (evaluate.has("target_path"))
    evaluate.fail("target_path", "has the targets of evaluate.path, which is not given; give both, or neither");
}

Entry table_entry() {
  return {
      "table", "features and a target: CSV with declared columns, .npy or safetensors arrays, memory-mapped",
      with_preparation(
          {describe::text(
               "path",
               ".csv (or other text), .npy with the features, or .safetensors; a pattern such as part-*.csv or "
               "{may,june}.csv means several files with the same columns")
               .must(),
           describe::text("target_path", ".npy with the targets").may_be_null(),
           describe::text("delimiter", "csv: separator of fields, one character or the word tab", ","),
           describe::boolean(
               "header", "csv: the first line has the names of the columns; without it they are named 1, 2, …", true),
           describe::list("features", "columns of numbers, all others by default; or the one tensor's name (features)",
                          describe::text("", "a column")),
           describe::text("target", "the column or tensor to predict", "target"),
           describe::text("weight", "the column or tensor with row weights: numbers of at least 0").may_be_null(),
           describe::choice("task", "classification: classes (words or numbers); regression: numbers",
                            {"classification", "regression"}, "classification"),
           describe::integer("classes", "number of classes, if the data does not contain all")
               .between(1, 1 << 30)
               .may_be_null(),
           describe::section(
               "evaluate", "evaluation rows",
               {describe::real("fraction", "fraction of the rows, drawn by the seed", 0.1).between(0, 0.99),
                describe::text("path", "a separate file instead").may_be_null(),
                describe::text("target_path", ".npy with its targets").may_be_null()})}),
      check_table};
}

// --- text ---

void check_text(const Options& options) {
  const bool bytes = options.text("vocabulary") == "bytes";
  if (options.has("tokenizer") && !bytes)
    refuse_without_effect(options, "vocabulary", "and tokenizer both give the tokens; leave one of them out",
                          {options.location("tokenizer")});
  if (holds_tokens(options.text("format"), options.text("path"))) {
    const std::string reason = "needs text, but path is a file of tokens; leave it out";
    if (!bytes) refuse_without_effect(options, "vocabulary", reason, {options.location("path")});
    refuse_without_effect(options, "unknown", reason, {options.location("path")});
    if (!options.has("tokenizer") && !options.has("vocabulary_size"))
      options.fail("vocabulary_size",
                   "is needed for a file of tokens: give the number of tokens that there can be, or the tokenizer");
  }
  if (bytes)
    refuse_without_effect(options, "unknown",
                          "has no effect with vocabulary: bytes, which has a token for each byte; leave it out",
                          {options.location("vocabulary")});
}

Entry text_entry() {
  return {
      "text",
      "sequences of tokens from a file of text or tokens; each token is predicted from those before it; memory-mapped",
      {describe::text("path", "file of plain text, whose bytes are used unchanged; or of tokens (format)").must(),
       describe::choice("format",
                        "text; npy: an array of tokens; uint16, uint32: tokens without a header, little-endian; auto: "
                        "npy for a name that ends in .npy, else text",
                        {"auto", "text", "npy", "uint16", "uint32"}, "auto"),
       describe::text("tokenizer",
                      "byte-level BPE of Hugging Face: a tokenizer.json, or a vocab.json with the merges.txt next to "
                      "it; encodes text, and names the tokens of a file of tokens")
           .may_be_null(),
       describe::text(
           "vocabulary",
           "bytes: 256 tokens, one per byte; or a file of tokens: one a line (\\n, \\t, \\r, \\s, \\\\, \\xHH "
           "stand for bytes), or JSON, a list of tokens or a map from token to number. Tokens are literal text",
           "bytes"),
       describe::integer("vocabulary_size",
                         "number of token ids of the model; by default those of the vocabulary or the tokenizer. A "
                         "file of tokens without a tokenizer needs it")
           .between(1, 1 << 24)
           .in("tokens")
           .may_be_null(),
       describe::text("unknown",
                      "the token for a byte with which no token of the vocabulary begins; by default "
                      "such a byte is an error")
           .may_be_null(),
       describe::integer("length", "length of a sequence", 128).between(1, 1 << 24).in("tokens"),
       describe::section("evaluate", "evaluation sequences",
                         {describe::real("fraction", "fraction of the file, at its end", 0.1).between(0, 0.99)})},
      check_text};
}

}  // namespace

const std::vector<Entry>& dataset_catalogue() {
  static const std::vector<Entry> entries{
      fashion_mnist_entry(), images_entry(), interactions_entry(), synthetic_entry(), table_entry(), text_entry(),
  };
  return entries;
}

const std::vector<Entry>& transform_catalogue() {
  static const std::vector<Entry> entries{
      {"flip", "mirrors images from left to right", {describe::real("p", "probability", 0.5).between(0, 1)}},
      {"noise", "adds normal noise", {describe::real("deviation", "its standard deviation", 0.1).at_least(0)}},
      {"normalise",
       "(x − mean) / deviation per channel (or per feature), in evaluation too",
       {describe::list("mean", "one for all, or one per channel", describe::real("", "a mean"), Json::array({0.0})),
        describe::list("deviation", "one for all, or one per channel", describe::real("", "a deviation").above(0),
                       Json::array({1.0}))}},
      {"shift",
       "moves images by a random number of pixels in each direction; new pixels are zero",
       {describe::integer("pixels", "largest move", 2).between(0, 16384).in("pixels")}}};
  return entries;
}

std::vector<Option> common_data_options() {
  return {
      describe::list("transforms", "augmentations, in order", describe::component("", "an augmentation", "transform")),
      describe::integer("prefetch",
                        "batches assembled ahead, on the loader's thread; 0: no thread, the rank assembles each batch "
                        "when it needs it; auto: 0 if a rank has only one core and its rows are in memory, else 4")
          .between(0, 1024)
          .in("batches")
          .or_auto(),
      describe::choice(
          "changed",
          "on resume, if the data differs from that of the checkpoint. refuse: end with an error; allow: continue with "
          "the new data and the checkpoint's numbers of ids, classes and columns, if the checkpoint has all of them",
          {"refuse", "allow"}, "refuse"),
      describe::section("samples", "rows to train on; in an ensemble, of each member", samples_options()),
      describe::integer("seed", "seed of the draws of the data set and its transforms; auto: the run's")
          .at_least(0)
          .or_auto(),
  };
}

}  // namespace convoy
