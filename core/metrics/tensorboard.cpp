#include "core/metrics/tensorboard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/isfinite.h>

namespace convoy {
namespace {

constexpr int64_t buckets = 64;

// An indented block keeps line breaks in Markdown.
std::string code_block(const std::string& text) {
  std::string block = "    ";
  for (const char c : text) block += c == '\n' ? "\n    " : std::string(1, c);
  return block;
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, int64_t last_step, const std::string& configuration)
    : file_(folder, last_step) {
  file_.text(last_step, "configuration", code_block(configuration));
}

void TensorBoard::write(const Record& record) {
  std::vector<std::pair<std::string, double>> values;
  const Json all = to_json(record);
  for (const auto& [key, value] : all.items()) {
    if (key == "kind" || key == "step") continue;
    if (key == "metrics") {
      for (const auto& [name, one] : value.items()) values.emplace_back(record.kind + "/" + name, read_number(one));
    } else if (key == "members") {
      for (const auto& [name, list] : value.items())
        for (size_t member = 0; member < list.size(); ++member)
          values.emplace_back(str(record.kind, "/", name, "/member", member), read_number(list[member]));
    } else if (!value.is_array()) {  // not a list of names
      values.emplace_back(record.kind + ".progress/" + key, read_number(value));
    }
  }
  file_.scalars(record.step, values);
}

void TensorBoard::resources(int64_t step, const Json& report) {
  std::vector<std::pair<std::string, double>> values;
  for (const auto& [key, value] : report.items())
    if (value.is_number() && key != "rank") values.emplace_back("resources/" + key, read_number(value));
  file_.scalars(step, values);
}

void TensorBoard::histograms(int64_t step, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::pair<std::string, Histogram>> values;
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined() && tensor.numel() > 0) values.emplace_back(name, histogram_of(tensor));
  file_.histograms(step, values);
}

Histogram histogram_of(const at::Tensor& values) {
  at::NoGradGuard no_grad;
  at::Tensor flat = values.detach().reshape({-1}).to(at::kFloat);
  flat = flat.masked_select(at::isfinite(flat)).to(at::kCPU);
  Histogram result;
  result.count = static_cast<double>(flat.numel());
  if (flat.numel() == 0) {
    result.limits = {0};
    result.counts = {0};
    return result;
  }
  result.min = flat.min().item<double>();
  result.max = flat.max().item<double>();
  result.sum = flat.sum(at::kDouble).item<double>();
  result.sum_of_squares = flat.square().sum(at::kDouble).item<double>();
  if (result.min == result.max) {
    result.limits = {result.max};
    result.counts = {result.count};
    return result;
  }
  const at::Tensor counts = at::histc(flat, buckets, result.min, result.max);
  for (int64_t i = 0; i < buckets; ++i) {
    const double share = static_cast<double>(i + 1) / static_cast<double>(buckets);
    result.limits.push_back(i + 1 == buckets ? result.max : result.min + share * (result.max - result.min));
    result.counts.push_back(counts[i].item<double>());
  }
  return result;
}

}  // namespace convoy
