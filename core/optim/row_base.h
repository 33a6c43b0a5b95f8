// What row optimizers share: tables, their rows' last updates, and which of two ways a call takes (row_optimizer.h).
#pragma once
#include <array>
#include <optional>

#include "core/optim/dense.h"
#include "core/optim/row_history.h"
#include "core/optim/row_loops.h"
#include "core/optim/row_optimizer.h"

namespace convoy {

// Gathered rows, for the way by tensors: [n, width], and columns [n, 1] of what they missed.
struct GatheredRows {
  at::Tensor values;
  std::array<at::Tensor, 2> moments;
  at::Tensor decay, sum, spread, first, second;
  at::Tensor gradients;  // undefined: they are only caught up
};

struct RowWays {
  bool lazy = false;
  std::optional<bool> exact;  // one by one what was missed; none: in fp64 on the CPU
  bool tensors = false;       // on the CPU too; for tests
};
// Of `lazy` and `catch_up`; defaults where the optimizer has no such options.
RowWays row_ways(const Options& options);

class RowBase : public RowOptimizer {
 public:
  RowBase(std::vector<std::string> moment_names, double first, double second, RowWays ways);

  int add_table(at::Tensor values, const SlotOptions& options, const TableMemory& memory) override;
  void look_up(int table, const at::Tensor& rows, at::Tensor out) override;
  void update(int table, const at::Tensor& rows, const at::Tensor& gradients, const UpdateScalars& scalars) override;
  void settle(int table) override;
  void settle_rows(int table, const at::Tensor& rows) override;
  bool behind(int table) const override;
  std::vector<std::pair<std::string, at::Tensor>> moments(int table) override;
  void restored(int table) override;

 protected:
  // Error(config): this table cannot be one of rows.
  virtual void check(const SlotOptions& options) const = 0;
  virtual SkippedUpdate skipped(const SlotOptions& options, const HostScalars& scalars) const = 0;
  // Caught up into `out`, or in place, and then updated where there is a gradient.
  virtual void loop(const RowList<float>& list, const float* gradient, float* out, const SlotOptions& options,
                    const HostScalars& scalars) const = 0;
  virtual void loop(const RowList<double>& list, const double* gradient, double* out, const SlotOptions& options,
                    const HostScalars& scalars) const = 0;
  // One row, update by update.
  virtual void replay(float* values, float* first, float* second, int64_t n, const SkippedUpdate* updates,
                      int64_t count) const = 0;
  virtual void replay(double* values, double* first, double* second, int64_t n, const SkippedUpdate* updates,
                      int64_t count) const = 0;
  // In place, in the table's dtype.
  virtual void tensors(GatheredRows& rows, const SlotOptions& options, const HostScalars& scalars) const = 0;

 private:
  struct Table {
    at::Tensor values;
    SlotOptions options;
    std::vector<at::Tensor> moments;
    at::Tensor last;  // int32 [rows] on the CPU: updates of the history
    RowHistory history;
    bool exact = false;
    std::vector<std::pair<int64_t, int64_t>> own;  // rows to settle
    std::vector<RowFactors<float>> factors;
    std::vector<RowFactors<double>> double_factors;
  };
  template <class T>
  void run(Table& table, const int64_t* rows, int64_t n, const T* gradient, T* out, const HostScalars& scalars);
  template <class T>
  void run_part(Table& table, const int64_t* rows, int64_t begin, int64_t end, const T* gradient, T* out,
                const HostScalars& scalars);
  template <class T>
  void replay_row(const Table& table, T* values, T* first, T* second, int64_t last) const;
  template <class T>
  void look_up_exactly(Table& table, const int64_t* rows, int64_t begin, int64_t end, T* out);
  template <class T>
  void settle_part(Table& table, int64_t begin, int64_t end);
  void run_by_tensors(Table& table, const at::Tensor& rows, const at::Tensor& gradients, at::Tensor* out,
                      const HostScalars& scalars);
  static void now_current(Table& table, const at::Tensor& rows);
  bool by_loops(const Table& table) const { return table.values.is_cpu() && !ways_.tensors; }

  std::vector<std::string> moment_names_;
  double first_, second_;
  RowWays ways_;
  std::vector<Table> tables_;
};

std::unique_ptr<RowOptimizer> make_row_sgd(const Options& options, RowWays ways);
std::unique_ptr<RowOptimizer> make_row_adam(const Options& options, bool decoupled, RowWays ways);
std::unique_ptr<RowOptimizer> make_row_adagrad(const Options& options, RowWays ways);

}  // namespace convoy
