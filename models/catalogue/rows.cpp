// Checks of models against rows and sizes of the data.
#include <algorithm>

#include "models/catalogue/catalogue.h"

namespace convoy {
namespace {

using Shape = std::vector<int64_t>;

// The data set has another kind of rows.
[[noreturn]] void other_rows(const std::string& model, const Options& options, const std::string& wants,
                             const DeclaredSchema& rows, const std::string& choose) {
  options.fail("name", "is ", model, ", which takes ", wants, ", and this data set has ", rows.what, "; ", choose);
}

void check_images(const std::string& model, const Options& options, const Options& data, const DeclaredSchema& rows) {
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
      data.fail("features", "has ", dimensions, ", and model ", model,
                " takes images of channels × height × width; write [3, 32, 32], or choose model mlp");
    data.fail("path", data.text("path"), ": has features of ", dimensions, ", and model ", model,
              " takes images of channels × height × width; choose model mlp, or other data");
  }
  if (model != "convnet") return;
  const int64_t height = (*features)[1], width = (*features)[2];
  const auto convolutions = int64_t(options.integers("channels").size());
  if (convolutions > 62 || height >> convolutions == 0 || width >> convolutions == 0)
    options.fail("channels", "has ", convolutions, " convolutions, and an image of ", height, " × ", width,
                 " cannot be halved as often; take fewer");
}

// ncf uses numbers only in its MLP.
void check_numbers(const Options& options, const Options& data) {
  if (options.integer("mlp_dim") > 0) return;
  const auto refuse = [&](const char* key) {
    options.fail("mlp_dim", "is 0, but only the MLP uses data.", key, "; raise it, or leave data.", key, " out");
  };
  if (data.text("name") == "synthetic" && data.integer("context") > 0) refuse("context");
  if (data.text("name") != "interactions") return;
  for (const char* key : {"item_features", "user_features"})
    if (data.has(key)) refuse(key);
  for (const char* list : {"context", "item_features", "user_features"})
    if (!data.section("columns").texts(list).empty()) refuse(str("columns.", list).c_str());
}

// Some metrics need all items ranked.
void check_ranking_metrics(const Options& options, const Options& data) {
  if (!options.has("metrics") || !data.has("ranking") || data.text("ranking") == "full") return;
  const std::vector<std::string> names = options.texts("metrics");
  for (size_t index = 0; index < names.size(); ++index)
    if (names[index] == "coverage" || names[index] == "gini")
      options.fail(str("metrics.", index), str("is ", names[index],
                                               ", which counts the best of all items, and "
                                               "data.ranking is sampled; set data.ranking=full, or leave it out"));
}

}  // namespace

void check_model_rows(const std::string& model, const Options& options, const Options& data,
                      const DeclaredSchema& rows) {
  if (!rows.known()) return;
  if ((model == "gpt" || model == "llama") && !rows.has("tokens"))
    other_rows(model, options, "rows of tokens, each predicted from those before it", rows,
               "choose data: {name: text}, or another model");
  if (model == "gpt" && options.has("context") && rows.shape("tokens"))
    if (const int64_t length = rows.shape("tokens")->at(0), context = options.integer("context"); context < length)
      options.fail("context", "is ", context, ", and the data's sequences have ", length,
                   " tokens; take at least that, or a smaller data.length");
  if (model == "ncf" && !rows.has("item"))
    other_rows(model, options, "users with items", rows, "choose data: {name: interactions}, or another model");
  if (model == "ncf") check_numbers(options, data);
  if (model == "ncf") check_ranking_metrics(options, data);
  if (model == "mlp" && !rows.has("features"))
    other_rows(model, options, "features", rows, rows.has("tokens") ? "choose model gpt" : "choose model ncf");
  if (model == "resnet" || model == "convnet") check_images(model, options, data, rows);
}

// --- Sizes: products of a model's options can exceed any memory although each option is valid ---

namespace {

// Checks the layers' weights one after another, and keeps the widest output of a row.
class Layout {
 public:
  explicit Layout(const Options& options) : options_(options) {}
  void weight(const std::string& key, double in, double out) {
    refuse_above(most_elements, options_, key, in * out, "a weight");
    output(out);
  }
  void output(double elements) { widest_ = std::max(widest_, elements); }
  double widest() const { return widest_; }

 private:
  const Options& options_;
  double widest_ = 1;
};

double number_or(const Options& options, const char* key, double otherwise) {
  const bool there = options.json().contains(key) && options.at(key).is_number_integer();
  return there ? double(options.integer(key)) : otherwise;
}

double mlp_widest(const Options& options, const Options& data, const DeclaredSchema& rows) {
  Layout layout(options);
  double in = product_of(rows.shape("features").value_or(Shape()));
  const std::vector<int64_t> hidden = options.integers("hidden");
  for (size_t i = 0; i < hidden.size(); in = double(hidden[i++]))
    layout.weight(str("hidden.", i), in, double(hidden[i]));
  const double out = std::max(number_or(data, "classes", 1), number_or(data, "targets", 1));
  layout.weight(hidden.empty() ? "name" : str("hidden.", hidden.size() - 1), in, out);
  return layout.widest();
}

double transformer_widest(const std::string& model, const Options& options, const Options& data) {
  Layout layout(options);
  const auto dim = double(options.integer("dim")), length = double(data.integer("length"));
  const bool gated = model == "llama";
  // The gate and the values that it scales are one product.
  const double mlp = gated ? 2 * double(llama_mlp_dim(options)) : double(gpt_mlp_dim(options));
  const double vocabulary = number_or(data, "vocabulary_size", number_or(data, "vocabulary", 256));
  layout.weight("dim", 3 * dim, dim);
  layout.weight("dim", vocabulary, dim);
  layout.weight(options.has("mlp_dim") ? "mlp_dim" : gated ? "dim" : "mlp_ratio", dim, mlp);
  refuse_above(16 * most_elements, options, "layers",
               double(options.integer("layers")) * (4 * dim * dim + 2 * dim * mlp), "weights");
  if (options.has("context")) layout.weight("context", double(options.integer("context")), dim);
  const double attention = double(options.integer("heads")) * length * length;
  for (double elements : {length * std::max({dim, mlp, vocabulary}), attention}) {
    refuse_above(most_batch_elements, data, "length", elements, "an activation");
    layout.output(elements);
  }
  return layout.widest();
}

double ncf_widest(const Options& options, const Options& data, double items_of_a_row) {
  Layout layout(options);
  const auto gmf = double(options.integer("gmf_dim")), mlp = double(options.integer("mlp_dim"));
  const double ids = std::max(number_or(data, "users", 1), number_or(data, "items", 1));
  layout.weight(mlp > gmf ? "mlp_dim" : "gmf_dim", ids, gmf + mlp);
  double in = 2 * mlp + number_or(data, "context", 0);
  const std::vector<int64_t> hidden = options.integers("hidden");
  for (size_t i = 0; i < hidden.size() && mlp > 0; in = double(hidden[i++]))
    layout.weight(str("hidden.", i), in, double(hidden[i]));
  return items_of_a_row * layout.widest();
}

double convnet_widest(const Options& options, const DeclaredSchema& rows) {
  Layout layout(options);
  const auto kernel = double(options.integer("kernel"));
  const std::vector<int64_t> channels = options.integers("channels");
  const Shape image = rows.shape("features").value_or(Shape{3, 32, 32});
  double in = double(image[0]), height = double(image[1]), width = double(image[2]);
  for (size_t i = 0; i < channels.size(); in = double(channels[i++])) {
    layout.weight(str("channels.", i), in * kernel * kernel, double(channels[i]));
    layout.output(double(channels[i]) * height * width);
    height = std::max(1.0, height / 2);
    width = std::max(1.0, width / 2);
  }
  layout.weight("hidden", in * height * width, double(options.integer("hidden")));
  return layout.widest();
}

}  // namespace

double check_model_sizes(const std::string& model, const Options& options, const Options& data,
                         const DeclaredSchema& rows, double row_elements) {
  if (!rows.known()) return row_elements;
  if (model == "mlp") return std::max(row_elements, mlp_widest(options, data, rows));
  if (model == "gpt" || model == "llama") return std::max(row_elements, transformer_widest(model, options, data));
  if (model == "ncf") return std::max(row_elements, ncf_widest(options, data, row_elements));
  if (model == "convnet") return std::max(row_elements, convnet_widest(options, rows));
  return row_elements;
}

}  // namespace convoy
