#include "launch/verify_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "core/text.h"

namespace convoy {
namespace {

constexpr size_t most_named = 3;

bool is_initial(const StepDifferences& step) { return step.step == 0; }

bool counts(const TensorDifference& tensor) { return tensor.kind != "buffer"; }

bool exceeds(const StepDifferences& step, const TensorDifference& tensor, double tolerance) {
  if (is_initial(step)) return !tensor.same_bytes;
  return counts(tensor) && !(tensor.relative <= tolerance);
}

// Three digits are enough to tell rounding from a mistake.
std::string figure(double value) {
  if (!std::isfinite(value)) return "inf";
  if (value == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

std::string tolerance_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0e", value);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

struct Row {
  std::vector<int64_t> shape;
  std::map<std::string, double> worst;  // by kind, over all steps
  int64_t first = -1;                   // step that is above the tolerance
};

// Parameters first, then what hangs on them; moments by name.
int place_of(const std::string& kind) {
  const char* const order[] = {"parameter", "gradient"};
  for (int i = 0; i < 2; ++i)
    if (kind == order[i]) return i;
  return kind == "buffer" ? 3 : kind == "counter" ? 4 : 2;
}

class Table {
 public:
  Table(const std::vector<StepDifferences>& steps, double tolerance) : tolerance_(tolerance) {
    for (const StepDifferences& step : steps)
      for (const TensorDifference& tensor : step.tensors)
        if (is_told(step, tensor)) add(step, tensor);
    std::stable_sort(kinds_.begin(), kinds_.end(), [](const std::string& a, const std::string& b) {
      return std::make_pair(place_of(a), a) < std::make_pair(place_of(b), b);
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
        line.push_back(found == row.worst.end() ? "-" : figure(found->second));
      }
      line.push_back(row.first < 0 ? "never" : str("step ", row.first));
      lines.push_back(std::move(line));
    }
    return aligned(lines);
  }

 private:
  // Counters are shared by all tensors: they have a row and a column only where they are wrong.
  bool is_told(const StepDifferences& step, const TensorDifference& tensor) const {
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

  static std::string aligned(const std::vector<std::vector<std::string>>& lines) {
    std::vector<size_t> widths(lines.front().size(), 0);
    for (const auto& line : lines)
      for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    std::string text;
    for (const auto& line : lines) {
      for (size_t i = 0; i < line.size(); ++i) {
        // Names and shapes begin at the left, figures end at the right.
        const std::string blank(widths[i] - line[i].size(), ' ');
        text += (i == 0 ? "" : "  ") + (i < 2 ? line[i] + blank : blank + line[i]);
      }
      text += '\n';
    }
    return text;
  }

  double tolerance_;
  std::vector<std::string> names_, kinds_;
  std::map<std::string, Row> rows_;
};

std::string described(const TensorDifference& tensor) {
  const std::string what = str(tensor.kind, " of ", tensor.name);
  return tensor.fault.empty() ? str("the ", what, " by ", figure(tensor.relative))
                              : str("the ", what, " ", tensor.fault);
}

bool is_gradient(const TensorDifference& tensor) { return tensor.kind == "gradient"; }

// Of the first step that is wrong: the gradients that are furthest off, then the rest, which follows from them as all later
// steps do.
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
    named.push_back(described(*tensor));
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
  std::string text = str("agree: after each of ", updates, " updates everything is within ", tolerance_text(tolerance),
                         " of what ", reference, " gives");
  if (worst != nullptr && worst->relative > 0) text += str("; the worst is ", described(*worst), ", after step ", at);
  return text + "\n";
}

// A strategy may keep none: then all are missing, which says nothing about it.
bool without_gradients(std::vector<StepDifferences>& steps) {
  for (const StepDifferences& step : steps)
    for (const TensorDifference& tensor : step.tensors)
      if (is_gradient(tensor) && tensor.fault.empty()) return false;
  for (StepDifferences& step : steps)
    step.tensors.erase(std::remove_if(step.tensors.begin(), step.tensors.end(), is_gradient), step.tensors.end());
  return true;
}

}  // namespace

VerifyVerdict verdict_of(std::vector<StepDifferences> steps, double tolerance, const std::string& reference) {
  VerifyVerdict verdict;
  if (without_gradients(steps)) verdict.text += "gradients are not shown by this strategy, and not compared\n";
  verdict.table = Table(steps, tolerance).text();
  for (const StepDifferences& step : steps) {
    const std::string wrong = disagreement(step, tolerance);
    if (wrong.empty()) continue;
    verdict.text += is_initial(step) ? str("differ: the initial values are not equal bit for bit: ", wrong, "\n")
                                     : str("differ: first after step ", step.step, ": ", wrong, " (tolerance ",
                                           tolerance_text(tolerance), ")\n");
    return verdict;
  }
  // A training that made no update proves nothing.
  verdict.agree = steps.size() > 1 && is_initial(steps.front());
  verdict.text += verdict.agree ? agreement(steps, tolerance, reference) : "differ: there was nothing to compare\n";
  return verdict;
}

}  // namespace convoy
