#include "launch/diagnose/verify_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "launch/cli/text_table.h"

namespace convoy {
namespace {

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
  // All tensors share the counters: a counter gets a row and a column only if it is wrong.
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

// True if the strategy keeps no gradients: then all are missing, and the comparison leaves them out.
bool without_gradients(std::vector<StepDifferences>& steps) {
  for (const StepDifferences& step : steps)
    for (const TensorDifference& tensor : step.tensors)
      if (is_gradient(tensor) && tensor.fault.empty()) return false;
  for (StepDifferences& step : steps)
    step.tensors.erase(std::remove_if(step.tensors.begin(), step.tensors.end(), is_gradient), step.tensors.end());
  return true;
}

}  // namespace

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
