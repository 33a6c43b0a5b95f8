#include "core/data/catalogue/declared_schema.h"

#include <zlib.h>
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"

namespace convoy {
namespace {

using Shape = std::vector<int64_t>;

constexpr double most_row_elements = 2147483648.0;           // one row's features
constexpr double most_tokens = 1024 * 1024 * most_elements;  // tokens of all rows

// For the data set `fashion_mnist`: [1, height, width].
FileShape fashion_features_shape(const Options& options) {
  const std::string name = options.text("path") + "/train-images-idx3-ubyte";
  for (const std::string& path : {name + ".gz", name}) {
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none)) continue;
    const gzFile file = gzopen(path.c_str(), "rb");  // reads uncompressed files too
    if (file == nullptr) return std::nullopt;
    unsigned char bytes[16] = {};
    const int got = gzread(file, bytes, sizeof bytes);
    gzclose(file);
    if (got != sizeof bytes || bytes[2] != 8 || bytes[3] != 3) return std::nullopt;
    const auto size = [&](size_t at) {
      return int64_t(bytes[at]) << 24 | int64_t(bytes[at + 1]) << 16 | int64_t(bytes[at + 2]) << 8 | bytes[at + 3];
    };
    return Shape{1, size(8), size(12)};
  }
  return std::nullopt;
}

DeclaredSchema token_rows(int64_t length) {
  DeclaredSchema rows;
  rows.what = "sequences of tokens";
  rows.fields["tokens"] = rows.fields["target"] = {Shape{length}, true};
  return rows;
}

// `features`: nullopt if only the file determines the shape.
DeclaredSchema vector_rows(const std::optional<Shape>& features, bool classes, const std::optional<Shape>& target) {
  DeclaredSchema rows;
  rows.what = classes ? "features with a class each" : "features with numbers to predict";
  rows.fields["features"] = {features, false};
  rows.fields["target"] = {classes ? Shape{} : target, classes};
  return rows;
}

DeclaredSchema interaction_rows() {
  DeclaredSchema rows;
  rows.what = "users with items";
  rows.fields["user"] = {Shape{}, true};
  rows.fields["item"] = {std::nullopt, true};
  rows.fields["target"] = {std::nullopt, false};
  return rows;
}

DeclaredSchema synthetic_rows(const Options& options) {
  const std::string& kind = options.text("kind");
  if (kind == "tokens") return token_rows(options.integer("length"));
  if (kind == "interactions") return interaction_rows();
  return vector_rows(options.integers("features"), kind == "classification", Shape{options.integer("targets")});
}

DeclaredSchema table_rows(const Options& options) {
  DeclaredSchema rows = vector_rows(std::nullopt, options.text("task") == "classification", std::nullopt);
  const std::string& path = options.text("path");
  const size_t dot = path.rfind('.');
  const std::string ending = dot == std::string::npos ? "" : path.substr(dot);
  rows.fields["features"].flat = ending != ".npy" && ending != ".safetensors";  // columns
  rows.fields["features"].shape = table_features_shape(options, path);
  return rows;
}

// [channels, height, width], or [height, width] for one channel; empty if rows are not images.
Shape image_shape(const Shape& features) {
  if (features.size() == 3) return features;
  return features.size() == 2 ? Shape{1, features[0], features[1]} : Shape{};
}

// Checks that images fit the transform.
void check_images(const Options& transform, const std::string& name, const Shape& features) {
  const Shape image = image_shape(features);
  if (image.empty())
    transform.fail("name", name, " needs images of channels × height × width, and a row's features have ",
                   features.size(), features.size() == 1 ? " dimension" : " dimensions",
                   "; leave it out, or choose other data");
  if (name != "shift") return;
  const int64_t pixels = transform.integer("pixels"), least = std::min(image[1], image[2]);
  if (pixels >= least)
    transform.fail("pixels", "is ", pixels, ", which is not smaller than images of ", image[1], " × ", image[2],
                   "; take less than ", least);
}

void check_channel_values(const Options& transform, const Shape& features) {
  const int64_t channels = features.empty() ? 1 : features.front();
  for (const char* key : {"mean", "deviation"}) {
    const auto values = static_cast<int64_t>(transform.reals(key).size());
    if (values != 1 && values != channels)
      transform.fail(key, "has ", values, " values for ", channels, features.size() == 1 ? " features" : " channels",
                     "; give one, or one for each");
  }
}

// --- Shapes from file headers. A missing or damaged file gives no shape; the loader reports the error. ---

// Drops the first dimension, which counts rows.
FileShape of_one_row(const Shape& shape) {
  if (shape.empty()) return std::nullopt;
  return Shape(shape.begin() + 1, shape.end());
}

// Header: an eight-byte length, then JSON {name: {"shape": [...]}}.
FileShape safetensors_shape(std::string_view text, const std::string& tensor) {
  uint64_t length = 0;
  if (text.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, text.data(), sizeof length);
  if (length > text.size() - sizeof length) return std::nullopt;
  const Json header = parsed_json(text.substr(sizeof length, length));
  if (!header.is_object() || !header.contains(tensor) || !header[tensor].is_object()) return std::nullopt;
  Shape shape;
  for (const Json& size : header[tensor].value("shape", Json::array())) {
    if (!size.is_number_integer()) return std::nullopt;
    shape.push_back(size.get<int64_t>());
  }
  return of_one_row(shape);
}

FileShape csv_shape(const Options& options, const MappedFile& file) {
  DelimitedReader reader(file.path(), file.text(), delimiter_of(options));
  const Header header(reader, false, options.boolean("header"));
  const std::vector<std::string> chosen = options.texts("features");
  if (!chosen.empty()) return Shape{static_cast<int64_t>(chosen.size())};
  auto columns = static_cast<int64_t>(header.names().size());
  for (const char* other : {"target", "weight"})
    if (options.has(other) && header.has(options.text(other))) --columns;
  return Shape{columns};
}

// --- data.samples ---

using Rows = MemberSample::Rows;

Rows rows_of(const std::string& how) {
  return how == "bootstrap" ? Rows::bootstrap
         : how == "subset"  ? Rows::subset
         : how == "folds"   ? Rows::fold
                            : Rows::all;
}

double vector_sizes(const Options& options, bool classes) {
  const double width = product_of(options.integers("features"));
  refuse_above(most_row_elements, options, "features", width, "a row");
  const char* outputs = classes ? "classes" : "targets";
  refuse_above(most_elements, options, outputs, width * double(options.integer(outputs)),
               "a table of features for each of them");
  return width;
}

// Items of one row: the positive, and its negatives in training or candidates in evaluation.
double items_of_a_row(const Options& options, double items) {
  const double compared = options.text("ranking") == "full" ? items : double(options.integer("candidates"));
  return 1 + std::max(double(options.integer("negatives")), compared);
}

double interaction_sizes(const Options& options) {
  const double rows = double(options.integer("rows")) + double(options.integer("users"));
  if (rows > 2147483647)
    options.fail("rows", "and users together are ", rows, "; the maximum is 2147483647; take fewer");
  const auto context = double(options.integer("context"));
  refuse_above(most_elements, options, "context", rows * context, "columns");
  const double width = items_of_a_row(options, double(options.integer("items")));
  return width + context;
}

double synthetic_sizes(const Options& options) {
  const std::string& kind = options.text("kind");
  if (kind == "interactions") return interaction_sizes(options);
  if (kind != "tokens") return vector_sizes(options, kind == "classification");
  const auto length = double(options.integer("length"));
  const double rows = double(options.integer("rows")) + double(options.integer("evaluate_rows"));
  refuse_above(most_tokens, options, "length", rows * length, "data");
  return length;
}

}  // namespace

std::optional<Shape> DeclaredSchema::shape(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? std::nullopt : found->second.shape;
}

DeclaredSchema declared_schema(const std::string& name, const Options& options) {
  if (name == "text") return token_rows(options.integer("length"));
  if (name == "synthetic") return synthetic_rows(options);
  if (name == "interactions") return interaction_rows();
  if (name == "fashion_mnist") return vector_rows(fashion_features_shape(options), true, std::nullopt);
  if (name == "images")
    return vector_rows(Shape{options.integer("channels"), options.integer("height"), options.integer("width")}, true,
                       std::nullopt);
  if (name == "table") return table_rows(options);
  return {};
}

void check_transforms(const Options& data, const DeclaredSchema& rows) {
  if (!rows.known() || !data.json().contains("transforms")) return;
  for (const Options& transform : data.sections("transforms")) {
    const std::string& name = transform.text("name");
    const bool images = name == "flip" || name == "shift";
    if (!images && name != "normalise" && name != "noise") continue;  // from a plugin
    if (!rows.has("features"))
      transform.fail("name", name, " changes features, and this data set has ", rows.what, "; leave it out");
    const std::optional<Shape> features = rows.shape("features");
    if (images && rows.fields.at("features").flat) check_images(transform, name, {1});
    if (!features) continue;
    if (images) check_images(transform, name, *features);
    if (name == "normalise") check_channel_values(transform, *features);
  }
}

void check_loss_rows(const Options& loss, const Options& data, const DeclaredSchema& rows) {
  if (!rows.known() || !loss.json().contains("name")) return;
  const std::string& name = loss.text("name");
  const bool classes = rows.fields.at("target").classes;
  if (name == "cross_entropy" && !classes)
    loss.fail("name", "is cross_entropy, which needs classes as targets, but this data set has ", rows.what,
              "; take mse, bce or bpr, or other data");
  if ((name == "mse" || name == "bce") && classes)
    loss.fail("name", "is ", name, ", whose targets are numbers, and this data set has ", rows.what,
              "; take cross_entropy, or other data");
  if (name != "bpr") return;
  if (!rows.has("item"))
    loss.fail("name", "is bpr, which ranks items, but this data set has ", rows.what, "; choose another loss");
  if (data.has("negatives") && data.integer("negatives") == 0)
    data.fail("negatives", "is 0, but loss bpr compares each positive with its negatives; draw at least one");
}

FileShape table_features_shape(const Options& options, const std::string& pattern) {
  // Only reading the whole file shows how many categories there are.
  if (options.has("categorical") && !options.texts("categorical").empty()) return std::nullopt;
  try {
    const std::string path = files_of(pattern).front();
    const MappedFile file(path);
    if (ends_in(path, ".npy")) return of_one_row(read_npy_header(path, file.text()).shape);
    const std::vector<std::string> chosen = options.texts("features");
    if (ends_in(path, ".safetensors"))
      return safetensors_shape(file.text(), chosen.empty() ? "features" : chosen.front());
    return csv_shape(options, file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<Option> samples_options() {
  return {
      describe::choice("how",
                       "all: every row; bootstrap: as many rows, drawn with replacement; subset: a fraction, drawn "
                       "without; folds: all "
                       "rows except one of several equal parts, on which the run evaluates",
                       {"all", "bootstrap", "subset", "folds"}, "all"),
      describe::real("fraction", "subset: share of the rows", 0.5).above(0).at_most(1),
      describe::integer("folds", "folds: number of parts", 5).between(2, 1 << 20),
      describe::integer("fold", "folds: the part that is held out, from 0", 0).between(0, 1 << 20),
      describe::integer("seed", "seed of the sample and of each epoch's order; auto: the run's").at_least(0).or_auto(),
  };
}

void check_samples(const Options& data) {
  if (!data.has("samples")) return;
  const Options samples = data.section("samples");
  if (!samples.has("fold") || !samples.has("folds")) return;  // a plugin's data set: its options are not read yet
  if (samples.integer("fold") >= samples.integer("folds"))
    samples.fail("fold", "is ", samples.integer("fold"), ", must be below folds, ", samples.integer("folds"),
                 ": they count from 0");
}

MemberSample member_sample(const Options& data, uint64_t seed) {
  MemberSample sample;
  sample.seed = seed;
  if (!data.has("samples")) return sample;
  const Options samples = data.section("samples");
  sample.rows = rows_of(samples.text("how"));
  if (!samples.is_auto("seed")) sample.seed = static_cast<uint64_t>(samples.integer("seed"));
  if (sample.rows == Rows::subset) sample.fraction = samples.real("fraction");
  if (sample.rows == Rows::fold) {
    sample.folds = samples.integer("folds");
    sample.member = samples.integer("fold");
  }
  return sample;
}

Json samples_json(const MemberSample& sample) {
  switch (sample.rows) {
    case Rows::bootstrap:
      return {{"how", "bootstrap"}};
    case Rows::subset:
      return {{"how", "subset"}, {"fraction", sample.fraction}};
    case Rows::fold:
      return {{"how", "folds"}, {"folds", sample.folds}, {"fold", sample.member % sample.folds}};
    default:
      return {{"how", "all"}};
  }
}

uint64_t data_seed(const Options& data, uint64_t run_seed) {
  return data.has("seed") && !data.is_auto("seed") ? static_cast<uint64_t>(data.integer("seed")) : run_seed;
}

EvaluationSplit evaluation_split(const Json& data, const Json& run_seed) {
  EvaluationSplit split;
  if (!data.is_object()) return split;
  const std::string name = data.value("name", "");
  const auto draw = [&] {
    const Json seed = data.value("seed", Json());
    split.options["data.seed"] = seed.is_number_integer() ? seed : run_seed;
    split.drawn = true;
  };
  if (name == "interactions") {
    const Json holdout = data.value("holdout", Json("none"));
    split.options["data.holdout"] = holdout;
    split.holds_out = holdout != "none";
    const Json evaluate = data.value("evaluate", Json());
    if (evaluate.is_object() && !evaluate.value("fraction", Json()).is_null())
      split.options["data.evaluate.fraction"] = evaluate["fraction"];
    if (holdout == "random") draw();
    return split;
  }
  const bool drawn = name == "table" || name == "images";
  const Json evaluate = data.value("evaluate", Json());
  if (!(drawn || name == "text") || !evaluate.is_object()) return split;
  split.options["data.evaluate.path"] = evaluate.value("path", Json());
  if (!split.options["data.evaluate.path"].is_null()) return split;
  const Json fraction = evaluate.value("fraction", Json(0.0));
  split.options["data.evaluate.fraction"] = fraction;
  split.holds_out = fraction.is_number() && fraction.get<double>() > 0;
  if (drawn) draw();
  if (name == "images") {
    std::error_code none;
    split.holds_out = split.holds_out && !std::filesystem::is_directory(data.value("path", "") + "/test", none);
  }
  return split;
}

// --- Size limits. The product of valid sizes may still exceed any memory. ---

double product_of(const std::vector<int64_t>& sizes) {
  double all = 1;
  for (int64_t size : sizes) all *= double(size);
  return all;
}

void refuse_above(double most, const Options& options, const std::string& key, double elements, const char* what) {
  if (elements > most)
    options.fail(key, "makes ", what, " of ", elements, " numbers; the maximum is ", most, "; take smaller sizes");
}

double check_data_sizes(const std::string& name, const Options& options) {
  if (name == "synthetic") return synthetic_sizes(options);
  if (name == "interactions") return items_of_a_row(options, 1);
  const DeclaredSchema rows = declared_schema(name, options);
  double width = 1;
  for (const auto& [field, described] : rows.fields)
    if (described.shape) width = std::max(width, product_of(*described.shape));
  return width;
}

}  // namespace convoy
