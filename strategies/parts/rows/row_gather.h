// RowGather: every rank of the group has all rows of all tables and makes the same update, of what all of them touched.
//
// One all-gather brings everybody every rank's message: how many rows of each table it has, the dense gradients where they are
// small, instead of an all-reduce beside it, then numbers and gradients of the rows. All ranks add them up in the order of
// ranks, so that replicas stay equal bit by bit. A rank without rows takes part with none.
// A message goes at the length of the rank's longest so far, which all know; what does not fit follows in a second one.
// Sent by each of N ranks: (N−1)·(8·tables + dense bytes + Σ rows·(4 or 8 + width·element)), each part padded to 8, with the rows
// of that longest message: a few in a hundred more than those of this update.
// Where gradients are compressed (sync.compress), those of rows are too: 2·width in place of width·element, and 8 a table.
// Where ranks of a host share the tables (host_rows.h), each adds up only the rows that it updates (touched_sums.h where all are of
// one host). If all are, messages too lie once, in memory that all map: written in place by one, read there by the others.
// Then a message also says how large its gradients are, so that all know whether any sum can be other than finite.
// On the CPU, by bytes and without tensors (device_row_gather.h: elsewhere). Threads: the rank's own. Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/parts/rows/narrow_rows.h"
#include "strategies/parts/rows/row_exchange.h"
#include "strategies/parts/rows/row_messages.h"
#include "strategies/parts/rows/row_sums.h"
#include "strategies/parts/rows/row_table.h"
#include "strategies/parts/rows/touched_sums.h"

namespace convoy {

class RowGather : public RowExchange {
 public:
  // The same tables in the same order on every rank. `numbers`: that gradients of rows are sent in (narrow_rows.h).
  RowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers = Compression::none);

  void begin() override { read(); }
  void run(const std::vector<at::Tensor>& dense) override;
  bool finite_sums() const override { return finite_sums_; }
  void written() override;
  void read() override;
  void complete() override;
  void visit(const StateVisitor& visit) const override;

 private:
  void make_room();
  void pack(const std::vector<at::Tensor>& dense);
  void gather();
  void gather_rest();
  int64_t begin_of(size_t rank) const;
  int64_t head_bytes() const;
  bool bounded() const { return host() != nullptr && narrow_.empty(); }
  bool bounds_allow() const;
  int64_t count(size_t rank, size_t table) const;
  int64_t length(size_t rank, int64_t dense) const;
  int64_t section(size_t table, int64_t rows) const;
  void merge_all(bool complete);
  // What a rank's message holds of a table.
  struct Section {
    const char *numbers, *values;
    int64_t rows;
  };
  std::vector<Section> sections(size_t table, std::vector<int64_t>& begins) const;
  const char* values_of(size_t table, const Section& section);
  template <class Number>
  void add_up(size_t table, const std::vector<Section>& sections, bool complete);
  HostRows* host() const { return tables_.empty() ? nullptr : tables_.front()->table->host().get(); }

  CommunicatorPtr group_;
  size_t ranks_;
  std::vector<ParameterPtr> tables_;
  std::vector<RowSums> sums_;  // by table
  std::vector<TouchedSums> touched_sums_;
  std::vector<NarrowRows> narrow_;     // by table; empty where rows are sent as they are
  int64_t dense_ = 0;                  // bytes of the dense gradients
  bool in_common_;                     // gathered_ is the same memory for all ranks
  bool in_place_ = false;              // the own message was written there
  at::Tensor packed_;                  // else it is here
  at::Tensor gathered_, rest_;         // first and second messages of all
  std::vector<int64_t> expected_;      // length of first messages, by rank
  std::vector<int64_t> lengths_;       // of whole ones
  std::vector<MessagePart> messages_;  // whole ones
  bool finite_sums_ = false;
  bool warned_ = false;
};

}  // namespace convoy
