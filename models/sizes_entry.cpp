// Products of a model's sizes, which may be beyond any memory though each size is not.
#include <algorithm>

#include "core/error.h"
#include "models/catalogue.h"

namespace convoy {
namespace {

// Weights of the layers, one after another, and the widest output of a row.
class Layout {
 public:
  explicit Layout(const Options& options) : options_(options) {}
  void weight(const std::string& key, double in, double out) {
    refuse(options_, key, in * out, most_elements, "a weight");
    output(out);
  }
  void output(double elements) { widest_ = std::max(widest_, elements); }
  static void refuse(const Options& options, const std::string& key, double elements, double most, const char* what) {
    if (elements > most)
      options.fail(key, str("makes ", what, " of ", elements, " numbers; ", most, " are the most; take smaller sizes"));
  }
  double widest() const { return widest_; }

 private:
  const Options& options_;
  double widest_ = 1;
};

double product(const std::optional<std::vector<int64_t>>& sizes) {
  double all = 1;
  for (int64_t size : sizes.value_or(std::vector<int64_t>())) all *= double(size);
  return all;
}

double number_or(const Options& options, const char* key, double otherwise) {
  const bool there = options.json().contains(key) && options.at(key).is_number_integer();
  return there ? double(options.integer(key)) : otherwise;
}

double mlp_widest(const Options& options, const Options& data, const DescribedRows& rows) {
  Layout layout(options);
  double in = product(rows.shape("features"));
  const std::vector<int64_t> hidden = options.integers("hidden");
  for (size_t i = 0; i < hidden.size(); in = double(hidden[i++]))
    layout.weight(str("hidden.", i), in, double(hidden[i]));
  const double out = std::max(number_or(data, "classes", 1), number_or(data, "targets", 1));
  layout.weight(hidden.empty() ? "name" : str("hidden.", hidden.size() - 1), in, out);
  return layout.widest();
}

double gpt_widest(const Options& options, const Options& data) {
  Layout layout(options);
  const auto dim = double(options.integer("dim")), length = double(data.integer("length"));
  const bool own = options.has("mlp_dim");
  const double mlp = own ? double(options.integer("mlp_dim")) : dim * double(options.integer("mlp_ratio"));
  const double vocabulary = number_or(data, "vocabulary", 256);
  layout.weight("dim", 3 * dim, dim);
  layout.weight("dim", vocabulary, dim);
  layout.weight(own ? "mlp_dim" : "mlp_ratio", dim, mlp);
  Layout::refuse(options, "layers", double(options.integer("layers")) * (4 * dim * dim + 2 * dim * mlp),
                 16 * most_elements, "weights");
  const double attention = double(options.integer("heads")) * length * length;
  for (double elements : {length * std::max({dim, mlp, vocabulary}), attention}) {
    Layout::refuse(data, "length", elements, most_batch_elements, "an activation");
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

double convnet_widest(const Options& options, const DescribedRows& rows) {
  Layout layout(options);
  const auto kernel = double(options.integer("kernel"));
  const std::vector<int64_t> channels = options.integers("channels");
  const std::vector<int64_t> image = rows.shape("features").value_or(std::vector<int64_t>{3, 32, 32});
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
                         const DescribedRows& rows, double row_elements) {
  if (!rows.known()) return row_elements;
  if (model == "mlp") return std::max(row_elements, mlp_widest(options, data, rows));
  if (model == "gpt") return std::max(row_elements, gpt_widest(options, data));
  if (model == "ncf") return std::max(row_elements, ncf_widest(options, data, row_elements));
  if (model == "convnet") return std::max(row_elements, convnet_widest(options, rows));
  return row_elements;
}

}  // namespace convoy
