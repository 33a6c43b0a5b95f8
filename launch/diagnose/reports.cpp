#include "launch/diagnose/reports.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "core/base/text.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

constexpr int64_t largest_size = int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(Failure::command_line, "--sizes: '", text,
              "' is no list of sizes from 1 byte to 1024G; write 1K-64M, or 4K,450000,48M");
}

// Bytes in "4K"; K, M and G are powers of 1024.
int64_t size_of(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const std::string unit = text.substr(digits);
  const std::string units = "KMG";
  const bool known = unit.empty() || (unit.size() == 1 && units.find(unit) != std::string::npos);
  if (digits == 0 || digits > 13 || !known) refuse(text);
  int64_t size = std::atoll(text.c_str());
  if (!unit.empty()) size <<= 10 * (units.find(unit) + 1);
  if (size < 1 || size > largest_size) refuse(text);
  return size;
}

void add_range(const std::string& text, std::vector<int64_t>& sizes) {
  const size_t dash = text.find('-');
  if (dash == std::string::npos) return sizes.push_back(size_of(text));
  const int64_t first = size_of(text.substr(0, dash)), last = size_of(text.substr(dash + 1));
  if (first > last) refuse(text);
  for (int64_t size = first; size < last; size *= 2) sizes.push_back(size);
  sizes.push_back(last);
}

std::string heading(const Json& row) {
  const int ranks = row.at("ranks").get<int>();
  const std::string operation = row.at("operation").get<std::string>();
  char columns[256];
  std::snprintf(columns, sizeof columns, "%14s %14s %8s %12s %10s %10s %8s\n%14s %14s %8s %12s %10s %10s\n", "size",
                "count", "dtype", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "(us)", "(GB/s)",
                "(GB/s)");
  return str(operation, operation == "all_reduce" || operation == "reduce_scatter" ? " (sum)" : "", ", ",
             counted(ranks, "rank"), ", ", row.at("backend").get<std::string>(), ", tensors on ",
             row.at("device").get<std::string>(), "; medians\n", columns);
}

constexpr size_t most_named = 3;

bool is_initial(const StepDifferences& step) { return step.step == 0; }

bool counts(const TensorDifference& tensor) { return tensor.kind != "buffer"; }

bool exceeds(const StepDifferences& step, const TensorDifference& tensor, double tolerance) {
  if (is_initial(step)) return !tensor.same_bytes;
  return counts(tensor) && !(tensor.relative <= tolerance);
}

// Two digits distinguish rounding from a mistake.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "inf";
  if (value == 0) return "0";
  return formatted("%.1e", value);
}

std::string tolerance_text(double value) { return formatted("%.0e", value); }

struct Row {
  std::vector<int64_t> shape;
  std::map<std::string, double> worst;  // by kind, over all steps
  int64_t first = -1;                   // step that is above the tolerance
};

// Order of the columns: parameter, gradient, moments by name, buffer, counter.
int column_order(const std::string& kind) {
  if (kind == "parameter" || kind == "gradient") return kind == "parameter" ? 0 : 1;
  return kind == "buffer" ? 3 : kind == "counter" ? 4 : 2;
}

class Table {
 public:
  Table(const std::vector<StepDifferences>& steps, double tolerance) : tolerance_(tolerance) {
    for (const StepDifferences& step : steps)
      for (const TensorDifference& tensor : step.tensors)
        if (is_shown(step, tensor)) add(step, tensor);
    std::stable_sort(kinds_.begin(), kinds_.end(), [](const std::string& a, const std::string& b) {
      return std::make_pair(column_order(a), a) < std::make_pair(column_order(b), b);
    });
  }

  std::string text() const {
    std::vector<std::vector<std::string>> lines{{"tensor", "shape"}};
    lines.front().insert(lines.front().end(), kinds_.begin(), kinds_.end());
    lines.front().push_back("first above " + tolerance_text(tolerance_));
    for (const std::string& name : names_) {
      const Row& row = rows_.at(name);
      std::vector<std::string> line{name, shape_text(row.shape)};
      for (const std::string& kind : kinds_) {
        const auto found = row.worst.find(kind);
        line.push_back(found == row.worst.end() ? "-" : number_text(found->second));
      }
      line.push_back(row.first < 0 ? "never" : str("step ", row.first));
      lines.push_back(std::move(line));
    }
    std::vector<size_t> numbers(lines.front().size() - 2);  // the columns after name and shape
    std::iota(numbers.begin(), numbers.end(), 2);
    return text_table(lines, numbers);
  }

 private:
  // A counter gets a row and a column only if it is wrong: it is the same for all tensors.
  bool is_shown(const StepDifferences& step, const TensorDifference& tensor) const {
    return tensor.kind != "counter" || exceeds(step, tensor, tolerance_);
  }
  void add(const StepDifferences& step, const TensorDifference& tensor) {
    const auto [found, fresh] = rows_.try_emplace(tensor.name);
    Row& row = found->second;
    if (fresh) {
      names_.push_back(tensor.name);
      row.shape = tensor.shape;
    }
    if (std::find(kinds_.begin(), kinds_.end(), tensor.kind) == kinds_.end()) kinds_.push_back(tensor.kind);
    double& worst = row.worst[tensor.kind];
    if (!(tensor.relative <= worst)) worst = tensor.relative;
    if (row.first < 0 && exceeds(step, tensor, tolerance_)) row.first = step.step;
  }

  double tolerance_;
  std::vector<std::string> names_, kinds_;
  std::map<std::string, Row> rows_;
};

std::string difference_text(const TensorDifference& tensor) {
  const std::string what = str(tensor.kind, " of ", tensor.name);
  return tensor.fault.empty() ? str("the ", what, " by ", number_text(tensor.relative))
                              : str("the ", what, " ", tensor.fault);
}

bool is_gradient(const TensorDifference& tensor) { return tensor.kind == "gradient"; }

// Describes the differences of one step: the largest gradients first, because other differences follow from them.
std::string disagreement(const StepDifferences& step, double tolerance) {
  std::vector<const TensorDifference*> wrong;
  for (const TensorDifference& tensor : step.tensors)
    if (exceeds(step, tensor, tolerance)) wrong.push_back(&tensor);
  std::stable_sort(wrong.begin(), wrong.end(), [](const auto* a, const auto* b) {
    return std::make_pair(is_gradient(*a), a->relative) > std::make_pair(is_gradient(*b), b->relative);
  });
  std::vector<std::string> named;
  for (const TensorDifference* tensor : wrong) {
    if (named.size() == most_named) break;
    named.push_back(difference_text(*tensor));
  }
  return str(join(named, "; "), wrong.size() > most_named ? str("; and ", wrong.size() - most_named, " more") : "");
}

std::string agreement(const std::vector<StepDifferences>& steps, double tolerance, const std::string& reference) {
  const TensorDifference* worst = nullptr;
  int64_t at = 0, updates = 0;
  for (const StepDifferences& step : steps) {
    if (is_initial(step)) continue;
    ++updates;
    for (const TensorDifference& tensor : step.tensors) {
      if (!counts(tensor) || (worst != nullptr && tensor.relative <= worst->relative)) continue;
      worst = &tensor;
      at = step.step;
    }
  }
  std::string text = str("agree: after ", updates == 1 ? "the update" : str("each of ", updates, " updates"),
                         " everything is within ", tolerance_text(tolerance), " of what ", reference, " gives");
  if (worst != nullptr && worst->relative > 0)
    text += str("; the worst is ", difference_text(*worst), ", after step ", at);
  return text + "\n";
}

// If all gradients are missing, removes them from the comparison and returns true: the strategy keeps none.
bool without_gradients(std::vector<StepDifferences>& steps) {
  for (const StepDifferences& step : steps)
    for (const TensorDifference& tensor : step.tensors)
      if (is_gradient(tensor) && tensor.fault.empty()) return false;
  for (StepDifferences& step : steps)
    step.tensors.erase(std::remove_if(step.tensors.begin(), step.tensors.end(), is_gradient), step.tensors.end());
  return true;
}

}  // namespace

std::vector<int64_t> bench_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const std::string& range : split(text, ',')) add_range(range, sizes);
  return sizes;
}

std::string bench_line(const Json& row) {
  char line[256];
  std::snprintf(line, sizeof line, "%14lld %14lld %8s %12.2f %10.3f %10.3f %8lld\n",
                static_cast<long long>(row.at("bytes").get<int64_t>()),
                static_cast<long long>(row.at("count").get<int64_t>()), row.at("dtype").get<std::string>().c_str(),
                row.at("seconds").get<double>() * 1e6, row.at("algorithm_bandwidth").get<double>() / 1e9,
                row.at("bus_bandwidth").get<double>() / 1e9, static_cast<long long>(row.at("wrong").get<int64_t>()));
  return (row.at("index").get<int>() == 0 ? heading(row) : "") + line;
}

int64_t wrong_elements(const Json& rows) {
  int64_t wrong = 0;
  for (const Json& row : rows) wrong += row.at("wrong").get<int64_t>();
  return wrong;
}

std::string bench_result(const Json& rows) {
  const int64_t wrong = wrong_elements(rows);
  double sum = 0;
  for (const Json& row : rows) sum += row.at("bus_bandwidth").get<double>();
  const double mean = rows.empty() ? 0 : sum / static_cast<double>(rows.size()) / 1e9;
  return str("mean bus bandwidth ", formatted("%.3f", mean), " GB/s; ",
             wrong == 0 ? "every element was right" : str(wrong, " elements were wrong"), "\n");
}

VerifyResult verify_result(std::vector<StepDifferences> steps, double tolerance, const std::string& reference) {
  VerifyResult result;
  if (without_gradients(steps)) result.text += "gradients are not shown by this strategy, and not compared\n";
  result.table = Table(steps, tolerance).text();
  for (const StepDifferences& step : steps) {
    const std::string wrong = disagreement(step, tolerance);
    if (wrong.empty()) continue;
    result.text += is_initial(step) ? str("differ: the initial values are not equal bit for bit: ", wrong, "\n")
                                    : str("differ: first after step ", step.step, ": ", wrong, " (tolerance ",
                                          tolerance_text(tolerance), ")\n");
    return result;
  }
  // A run without an update proves nothing.
  result.agree = steps.size() > 1 && is_initial(steps.front());
  result.text += result.agree ? agreement(steps, tolerance, reference) : "differ: there was nothing to compare\n";
  return result;
}

}  // namespace convoy
