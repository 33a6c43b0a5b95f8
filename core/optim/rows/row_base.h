// RowBase: common code of row optimizers: tables, the last update of each row, and the choice of a path
// (row_optimizer.h).
#pragma once
#include <array>
#include <optional>
#include <tuple>

#include "core/optim/dense.h"
#include "core/optim/rows/row_loops.h"
#include "core/optim/rows/row_optimizer.h"

namespace convoy {

// Gathered rows for the tensor path: [n, width], and columns [n, 1] with the factors of their missed updates.
struct GatheredRows {
  at::Tensor values;
  std::array<at::Tensor, 2> moments;
  at::Tensor decay, sum, spread, first, second;
  at::Tensor gradients;  // undefined: catch up only
};

class RowBase : public RowOptimizer {
 public:
  // `first`, `second`: decay rates of the moments. `tensors`: uses the tensor path on the CPU too; for tests.
  RowBase(std::vector<std::string> moment_names, double first, double second, const OptimizerOptions& options,
          bool tensors);

  int add_table(at::Tensor values, const SlotOptions& options, const TableMemory& memory) override;
  void look_up(int table, const at::Tensor& rows, at::Tensor out) override;
  void update(int table, const at::Tensor& rows, const at::Tensor& gradients, const UpdateScalars& scalars) override;
  void flush(int table) override { flush_and_copy(table, {}); }
  std::vector<at::Tensor> memory_for_copies(int table) override;
  void flush_and_copy(int table, const std::vector<at::Tensor>& copies) override;
  void flush_rows(int table, const at::Tensor& rows) override;
  bool stale(int table) const override;
  NamedTensors moments(int table) override;
  void restored(int table) override;

 protected:
  // Error(config) if this table cannot be sparse.
  virtual void check(const SlotOptions& options) const = 0;
  virtual MissedUpdate missed_update(const SlotOptions& options, const HostScalars& scalars) const = 0;
  // Catches up into `out`, or in place, and then updates if there is a gradient.
  virtual void loop(const RowList<float>& list, const float* gradient, float* out, const SlotOptions& options,
                    const HostScalars& scalars) const = 0;
  virtual void loop(const RowList<double>& list, const double* gradient, double* out, const SlotOptions& options,
                    const HostScalars& scalars) const = 0;
  // Applies missed updates to one row, one by one.
  virtual void replay(float* values, float* first, float* second, int64_t n, const MissedUpdate* updates,
                      int64_t count) const = 0;
  virtual void replay(double* values, double* first, double* second, int64_t n, const MissedUpdate* updates,
                      int64_t count) const = 0;
  // Updates the rows in place, in the table's dtype.
  virtual void tensors(GatheredRows& rows, const SlotOptions& options, const HostScalars& scalars) const = 0;

 private:
  struct Table {
    at::Tensor values;
    decltype(TableMemory::zeros) zeros;
    SlotOptions options;
    std::vector<at::Tensor> moments;
    at::Tensor last;  // int32 [rows] on the CPU: number of updates in the history when the row was last current
    RowHistory history;
    bool exact = false;
    std::vector<std::pair<int64_t, int64_t>> local_rows;  // ranges of rows that this process flushes
    std::tuple<std::vector<RowFactors<float>>, std::vector<RowFactors<double>>> factors;
    // The rows whose factors the last look-up computed. An update usually has the same rows in the same order.
    std::vector<int64_t> looked_up = {};
  };
  // Catches rows up into `out`, or in place, and then updates them if there are gradients.
  void run(Table& table, const at::Tensor& rows, const at::Tensor& gradients, at::Tensor* out,
           const HostScalars& scalars);
  template <class T>
  void run_loop(Table& table, const at::Tensor& rows, const T* gradient, T* out, const HostScalars& scalars);
  template <class T>
  void run_part(Table& table, const int64_t* rows, int64_t begin, int64_t end, const T* gradient, T* out,
                const HostScalars& scalars);
  template <class T>
  void replay_row(const Table& table, T* values, T* first, T* second, int64_t last) const;
  template <class T>
  void look_up_exactly(Table& table, const int64_t* rows, int64_t begin, int64_t end, T* out);
  template <class T>
  void flush_part(Table& table, int64_t begin, int64_t end);
  void run_with_tensors(Table& table, const at::Tensor& rows, const at::Tensor& gradients, at::Tensor* out,
                        const HostScalars& scalars);
  static void now_current(Table& table, const at::Tensor& rows);
  bool by_loops(const Table& table) const { return table.values.is_cpu() && !tensors_; }

  std::vector<std::string> moment_names_;
  double first_, second_;
  bool lazy_ = false;
  std::optional<bool> exact_;  // applies missed updates one by one; nullopt: only in fp64 on the CPU
  bool tensors_ = false;
  std::vector<Table> tables_;
};

}  // namespace convoy
