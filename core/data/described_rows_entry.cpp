#include "core/data/described_rows.h"

#include <algorithm>

#include "core/data/file_shapes.h"
#include "core/error.h"

namespace convoy {
namespace {

using Shape = std::vector<int64_t>;

DescribedRows token_rows(int64_t length) {
  DescribedRows rows;
  rows.what = "sequences of tokens";
  rows.fields["tokens"] = rows.fields["target"] = {Shape{length}, true};
  return rows;
}

// `features`: nullopt where the file tells.
DescribedRows vector_rows(const std::optional<Shape>& features, bool classes, const std::optional<Shape>& target) {
  DescribedRows rows;
  rows.what = classes ? "features with a class each" : "features with numbers to predict";
  rows.fields["features"] = {features, false};
  rows.fields["target"] = {classes ? Shape{} : target, classes};
  return rows;
}

DescribedRows interaction_rows() {
  DescribedRows rows;
  rows.what = "users with items";
  rows.fields["user"] = {Shape{}, true};
  rows.fields["item"] = {std::nullopt, true};
  rows.fields["target"] = {std::nullopt, false};
  return rows;
}

DescribedRows synthetic_rows(const Options& options) {
  const std::string& kind = options.text("kind");
  if (kind == "tokens") return token_rows(options.integer("length"));
  if (kind == "interactions") return interaction_rows();
  return vector_rows(options.integers("features"), kind == "classification", Shape{options.integer("targets")});
}

DescribedRows table_rows(const Options& options) {
  DescribedRows rows = vector_rows(std::nullopt, options.text("task") == "classification", std::nullopt);
  const std::string& path = options.text("path");
  const size_t dot = path.rfind('.');
  const std::string ending = dot == std::string::npos ? "" : path.substr(dot);
  rows.fields["features"].flat = ending != ".npy" && ending != ".safetensors";  // columns
  rows.fields["features"].shape = table_features_shape(options, path);
  return rows;
}

// [channels, height, width], or [height, width] of one channel; empty where rows are none.
Shape image_shape(const Shape& features) {
  if (features.size() == 3) return features;
  return features.size() == 2 ? Shape{1, features[0], features[1]} : Shape{};
}

// What transforms of images ask of them.
void check_images(const Options& transform, const std::string& name, const Shape& features) {
  const Shape image = image_shape(features);
  if (image.empty())
    transform.fail("name",
                   str(name, " needs images of channels × height × width, and a row's features have ", features.size(),
                       features.size() == 1 ? " dimension" : " dimensions", "; leave it out, or choose other data"));
  if (name != "shift") return;
  const int64_t pixels = transform.integer("pixels"), least = std::min(image[1], image[2]);
  if (pixels >= least)
    transform.fail("pixels", str("is ", pixels, ", which leaves nothing of images of ", image[1], " × ", image[2],
                                 "; take less than ", least));
}

void check_figures(const Options& transform, const Shape& features) {
  const int64_t channels = features.empty() ? 1 : features.front();
  for (const char* key : {"mean", "deviation"}) {
    const auto figures = static_cast<int64_t>(transform.reals(key).size());
    if (figures != 1 && figures != channels)
      transform.fail(key, str("has ", figures, " figures for ", channels,
                              features.size() == 1 ? " features" : " channels", "; give one, or one for each"));
  }
}

}  // namespace

std::optional<Shape> DescribedRows::shape(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? std::nullopt : found->second.shape;
}

DescribedRows described_rows(const std::string& name, const Options& options) {
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

void check_transforms(const Options& data, const DescribedRows& rows) {
  if (!rows.known() || !data.json().contains("transforms")) return;
  for (const Options& transform : data.sections("transforms")) {
    const std::string& name = transform.text("name");
    const bool images = name == "flip" || name == "shift";
    if (!images && name != "normalise" && name != "noise") continue;  // a plugin's
    if (!rows.has("features"))
      transform.fail("name", str(name, " changes features, and this data set has ", rows.what, "; leave it out"));
    const std::optional<Shape> features = rows.shape("features");
    if (images && rows.fields.at("features").flat) check_images(transform, name, {1});
    if (!features) continue;
    if (images) check_images(transform, name, *features);
    if (name == "normalise") check_figures(transform, *features);
  }
}

void check_loss_rows(const Options& loss, const Options& data, const DescribedRows& rows) {
  if (!rows.known() || !loss.json().contains("name")) return;
  const std::string& name = loss.text("name");
  const bool classes = rows.fields.at("target").classes;
  if (name == "cross_entropy" && !classes)
    loss.fail("name", str("is cross_entropy, whose targets are classes, and this data set has ", rows.what,
                          "; take mse, bce or bpr, or other data"));
  if ((name == "mse" || name == "bce") && classes)
    loss.fail("name", str("is ", name, ", whose targets are numbers, and this data set has ", rows.what,
                          "; take cross_entropy, or other data"));
  if (name != "bpr") return;
  if (!rows.has("item"))
    loss.fail("name", str("is bpr, which ranks items, and this data set has ", rows.what, "; take another loss"));
  if (data.has("negatives") && data.integer("negatives") == 0)
    data.fail("negatives", "is 0, and loss bpr holds each positive against its negatives; draw one at least");
}

}  // namespace convoy
