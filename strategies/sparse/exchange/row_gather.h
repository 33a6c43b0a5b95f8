// RowGather: every rank of the group has all rows of all tables and makes the same update from the rows that all ranks
// touched.
//
// One all-gather distributes every rank's message: its row count per table, small dense gradients (instead of an
// all-reduce), then numbers and gradients of the rows. All ranks sum in rank order, so replicas stay equal bit by bit.
// A rank without rows sends an empty list. A message has the length of the rank's longest so far, which all ranks know.
// A second message carries the rest.
// Sent by each of N ranks: (N−1)·(8·tables + dense bytes + Σ rows·(4 or 8 + width·element)), each section padded to 8
// bytes, with the rows of the longest message: a few percent more than this update's. With gradient compression
// (sync.compress) rows are compressed: 2·width instead of width·element, and 8 per table.
// With shared tables (shared_rows.h) each rank sums only the rows that it updates (touched_row_sums.h if all ranks are
// on one host). On one host the messages are in shared memory: their rank writes them in place, and the others read
// them there. A message then also has the norm of its gradients, so that all ranks know if every sum is finite.
// On the CPU it handles bytes without tensors; elsewhere DeviceRowGather. Threads: the rank's thread. Failure:
// CommError.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

#include "strategies/sparse/exchange/row_exchange.h"
#include "strategies/sparse/sparse_embedding.h"
#include "strategies/sparse/touched_row_sums.h"

namespace convoy {

// --- Dense gradients in messages, also in those of sharded_rows.h ---

// Returns the bytes of all dense gradients in a message. They come first in it, each padded to 8 bytes.
int64_t dense_bytes(const std::vector<at::Tensor>& dense);
// Writes to CPU memory; returns the end of the written bytes.
char* write_dense(char* to, const std::vector<at::Tensor>& dense);

// MessagePart: memory of a rank's message or section, from `begin` on.
struct MessagePart {
  at::Tensor bytes;
  int64_t begin = 0;
};
// Replaces each dense gradient by the sum over all ranks, added in their order.
void sum_dense(const std::vector<at::Tensor>& dense, const std::vector<MessagePart>& ranks);

// --- RowGather, DeviceRowGather ---

class RowGather : public RowExchange {
 public:
  RowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers = Compression::none);

  void begin() override { read(); }
  void run(const std::vector<at::Tensor>& dense) override;
  bool finite_sums() const override { return finite_sums_; }
  void written() override;
  void read() override;
  bool updates_together() const override;
  bool agree(bool yes) override;
  void complete() override;

 private:
  void make_room();
  void pack(const std::vector<at::Tensor>& dense);
  void gather();
  void gather_rest();
  int64_t begin_of(size_t rank) const;
  int64_t head_bytes() const;
  bool bounded() const { return host() != nullptr && compressed_.empty(); }
  bool bounds_allow() const;
  int64_t count(size_t rank, size_t table) const;
  int64_t length(size_t rank, int64_t dense) const;
  void merge_all(bool complete);
  // Rows of one table in a rank's message.
  struct Section {
    const char *numbers, *values;
    int64_t rows;
  };
  std::vector<Section> sections(size_t table, std::vector<int64_t>& begins) const;
  const char* values_of(size_t table, const Section& section);
  template <class Number>
  void add_up(size_t table, const std::vector<Section>& sections, bool complete);
  SharedRows* host() const { return tables_.empty() ? nullptr : tables_.front()->table->embedding().host().get(); }

  size_t ranks_;
  std::vector<RowSums> sums_;  // by table
  std::vector<TouchedRowSums> touched_sums_;
  int64_t dense_ = 0;                  // bytes of dense gradients
  bool in_shared_memory_;              // gathered_ is shared memory of all ranks
  bool in_place_ = false;              // this rank's message was written into gathered_
  at::Tensor packed_;                  // otherwise it was written here
  at::Tensor gathered_, rest_;         // first and second messages of all ranks
  std::vector<int64_t> expected_;      // length of first messages, by rank
  std::vector<int64_t> lengths_;       // lengths of complete messages
  std::vector<MessagePart> messages_;  // complete messages
  bool finite_sums_ = false;
};

// DeviceRowGather: RowGather for tables on an accelerator, with tensor operations.
//
// Ranks first exchange their row counts, because the host must know the sizes. Then one all-gather distributes the
// messages, without counts. All ranks sum in rank order. Sent by each of N ranks: as for RowGather, also with
// compression. Threads: the rank's thread. Failure: CommError.
class DeviceRowGather : public RowExchange {
 public:
  DeviceRowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers = Compression::none);

  void run(const std::vector<at::Tensor>& dense) override;

 private:
  void share_counts(const std::vector<TableRows>& own);
  void pack(const std::vector<at::Tensor>& dense, const std::vector<TableRows>& own);
  void merge(size_t table, const std::vector<int64_t>& begins);
  at::Tensor numbers_in(const at::Tensor& bytes, size_t table, int64_t begin, int64_t rows) const;
  at::Tensor values_at(size_t table, int64_t begin, int64_t rows) const;

  at::Tensor counts_;             // int64 [ranks, tables] on the CPU
  at::Tensor packed_, gathered_;  // bytes
  int64_t local_bytes_ = 0;
  std::vector<int64_t> bytes_;  // by rank
};

}  // namespace convoy
