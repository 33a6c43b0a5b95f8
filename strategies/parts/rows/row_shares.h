// RowShares: each row of each table has one owner among the ranks of the group (row_blocks.h), who alone keeps and updates it.
//
// A rank that looks up rows asks their owners, which bring them up to date and send what they hold; behind backward, owners
// are sent the gradients, add them up in the order of ranks and make the update. Where tables take their ids as they lie in the
// batch, which all ranks agree on behind the first step, all tables ask at once and before forward; else each asks in its
// forward, and so it is in evaluation.
// Sent by each of N ranks, which touches n rows of a table, of which 1/N are its own:
// (N−1)/N·Σ n·(4 or 8 + 2·width·element) + (N−1)·(8·tables + dense bytes), in one message of each kind to each peer.
// A request is sent at a size that both ends know from those before it, its numbers in front; what did not fit follows.
// Where gradients are compressed (sync.compress), those sent to owners are too: 2·width in place of one width·element, and 8 a
// table and peer; what is left over of a row stays with who sent it (narrow_rows.h), and an owner's own are added as they are.
// Where the dense gradients are small they travel with the rows', to all ranks, and are summed in the order of ranks too.
// On the CPU. Threads: the rank's own. Failure: CommError; Error(training) for a lookup beyond what was agreed on.
#pragma once
#include <map>
#include <string>
#include <utility>

#include "strategies/parts/rows/narrow_rows.h"
#include "strategies/parts/rows/row_exchange.h"
#include "strategies/parts/rows/row_sums.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {

class RowShares : public RowExchange, private RowSource {
 public:
  // The same tables in the same order on every rank. Collective: takes a group of its own, so that what forwards ask for may
  // come between other messages of the group. Outlives every lookup. `numbers`: that gradients are sent to owners in.
  RowShares(const CommunicatorPtr& group, std::vector<ParameterPtr> tables, Compression numbers = Compression::none);

  void begin() override;
  void expect(const Batch& batch) override;
  void run(const std::vector<at::Tensor>& dense) override;
  void visit(const StateVisitor& visit) const override;

 private:
  struct Wanted {  // rows of a table, by number, and where what they hold goes
    size_t table = 0;
    at::Tensor numbers, out;
  };
  using Lists = std::vector<std::vector<int64_t>>;  // by rank
  struct Dealt {                                    // of one Wanted or asked table
    Lists positions;                                // among the numbers
    Lists numbers;                                  // or places, at the owner
  };
  struct Sizes {  // of requests' first messages, by rank
    std::vector<int64_t> out, in;
  };
  struct Message {
    at::Tensor bytes;
    int64_t length = 0;
  };
  Communicator& group() override { return *group_; }
  void fetch(int table, const at::Tensor& numbers, const at::Tensor& out, bool trained) override;
  void fetch_all(const std::vector<Wanted>& wanted, bool trained);
  std::vector<Dealt> deal(const std::vector<Wanted>& wanted) const;
  int64_t asked_of(int peer, size_t index) const;
  void exchange_requests(const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt, const Sizes& sizes);
  std::vector<Lists> ask(const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt, bool trained);
  Sizes& sizes_of(const std::vector<Wanted>& wanted, bool trained);
  void write_request(int peer, const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt, int64_t least);
  void answer(const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt, const std::vector<Lists>& asked);
  void look_up_own(const Wanted& wanted, const std::vector<int64_t>& positions, const std::vector<int64_t>& places);
  void send_gradients(const std::vector<at::Tensor>& dense);
  void add_dense(const std::vector<at::Tensor>& dense);
  void add_rows();
  void learn();
  void exchange(const std::string& name);  // of outgoing_ and incoming_, their lengths
  void count_received(int64_t dense);      // of those
  // A message of so many bytes; its memory stays.
  static Message& resized(Message& message, int64_t bytes);
  int64_t row_bytes(size_t table) const;
  int64_t gradient_bytes(size_t table, int64_t rows) const;  // of a message to an owner
  int64_t number_bytes(size_t table) const;
  const RowBlocks& blocks(size_t table) const { return *tables_[table]->table->blocks(); }

  CommunicatorPtr group_;
  int rank_, ranks_;
  std::vector<ParameterPtr> tables_;
  std::vector<Lists>
      order_;  // by table and owner: which of the rows touched, in the order in which they were asked for
  std::vector<Lists> asked_;  // by table and asker: places
  std::vector<RowSums> sums_;
  std::vector<NarrowRows> narrow_;                    // by table; empty where gradients are sent as they are
  std::map<std::pair<size_t, size_t>, Sizes> sizes_;  // by first table and number of tables
  std::vector<Message> outgoing_, incoming_;          // by rank
  at::Tensor scratch_, own_dense_;
  int64_t dense_bytes_ = 0;
  int64_t received_ = 0;  // of rows, in this update
  bool warned_ = false;
  // Which tensor of the batch holds a table's ids.
  enum : int64_t { nobody_knows = -2, none = -1 };
  std::vector<int64_t> tensors_;
  bool agreed_ = false, foreseeing_ = false;
  Batch batch_;  // of the forwards under way, so that ids are known by where they lie
};

}  // namespace convoy
