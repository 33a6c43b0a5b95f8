// Rows that models take.
#include "core/error.h"
#include "models/catalogue.h"

namespace convoy {
namespace {

using Shape = std::vector<int64_t>;

// The rows are of another kind altogether.
[[noreturn]] void other_rows(const std::string& model, const Options& options, const std::string& wants,
                             const DescribedRows& rows, const std::string& choose) {
  options.fail("name", str("is ", model, ", which takes ", wants, ", and this data set has ", rows.what, "; ", choose));
}

void check_images(const std::string& model, const Options& options, const Options& data, const DescribedRows& rows) {
  const std::string wants = "images with a class each";
  if (!rows.has("features") || !rows.fields.at("target").classes)
    other_rows(model, options, wants, rows, "choose data: {name: images}, or another model");
  const std::optional<Shape> features = rows.shape("features");
  if (!features) {
    if (rows.fields.at("features").flat) other_rows(model, options, wants, rows, "choose model mlp, or other data");
    return;
  }
  if (features->size() != 3) {
    const std::string dimensions = str(features->size(), features->size() == 1 ? " dimension" : " dimensions");
    if (data.text("name") == "synthetic")
      data.fail("features", str("has ", dimensions, ", and model ", model,
                                " takes images of channels × height × width; write [3, 32, 32], or choose model mlp"));
    data.fail("path", str(data.text("path"), ": has features of ", dimensions, ", and model ", model,
                          " takes images of channels × height × width; choose model mlp, or other data"));
  }
  if (model != "convnet") return;
  const int64_t height = (*features)[1], width = (*features)[2];
  const auto convolutions = static_cast<int64_t>(options.integers("channels").size());
  if (convolutions > 62 || height >> convolutions == 0 || width >> convolutions == 0)
    options.fail("channels", str("has ", convolutions, " convolutions, and an image of ", height, " × ", width,
                                 " cannot be halved as often; take fewer"));
}

// ncf feeds numbers into its MLP alone.
void check_numbers(const Options& options, const Options& data) {
  if (options.integer("mlp_dim") > 0) return;
  const auto refuse = [&](const char* key) {
    options.fail("mlp_dim",
                 str("is 0, and data.", key, " goes into the MLP alone; raise it, or leave data.", key, " out"));
  };
  if (data.text("name") == "synthetic" && data.integer("context") > 0) refuse("context");
  if (data.text("name") != "interactions") return;
  for (const char* key : {"item_features", "user_features"})
    if (data.has(key)) refuse(key);
  for (const char* list : {"context", "item_features", "user_features"})
    if (!data.section("columns").texts(list).empty()) refuse(str("columns.", list).c_str());
}

}  // namespace

void check_model_rows(const std::string& model, const Options& options, const Options& data,
                      const DescribedRows& rows) {
  if (!rows.known()) return;
  if (model == "gpt" && !rows.has("tokens"))
    other_rows(model, options, "rows of tokens, each to be told from those before it", rows,
               "choose data: {name: text}, or another model");
  if (model == "ncf" && !rows.has("item"))
    other_rows(model, options, "users with items", rows, "choose data: {name: interactions}, or another model");
  if (model == "ncf") check_numbers(options, data);
  if (model == "mlp" && !rows.has("features"))
    other_rows(model, options, "features", rows, rows.has("tokens") ? "choose model gpt" : "choose model ncf");
  if (model == "resnet" || model == "convnet") check_images(model, options, data, rows);
}

}  // namespace convoy
