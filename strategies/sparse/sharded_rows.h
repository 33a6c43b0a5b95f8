// ShardedRows: each row of each table has one owner among the ranks of the group (row_index.h). Only the owner keeps
// and updates it.
//
// A rank requests the rows that it looks up from their owners, which catch them up and send their values. After
// backward owners receive the gradients, sum them in rank order, and update. After the first step all ranks compare
// which field of the batch has each table's ids. If every table has such a field, all tables request rows at once
// before forward. Otherwise, and in evaluation, each requests in its forward.
// Sent by each of N ranks, which touches n rows of a table and owns 1/N of them: (N−1)/N·Σ n·(4 or 8 + 2·width·element)
// + (N−1)·(8·tables + dense bytes), in one message of each kind per peer. The size of a request follows from earlier
// ones, so both ends know it. It starts with its counts; a second message carries the rest.
// With gradient compression (sync.compress) gradients to owners are compressed: 2·width instead of one width·element,
// and 8 per table and peer. The sender keeps the rounding error (HalfPrecisionRows); an owner's local gradients are
// exact. Small dense gradients are sent with the rows to all ranks, and are summed in rank order too.
// On the CPU. Threads: the rank's thread. Failure: CommError; Error(training) for a look-up of rows that were not
// prefetched.
#pragma once
#include <map>
#include <string>
#include <utility>

#include "strategies/sparse/exchange/row_exchange.h"
#include "strategies/sparse/sparse_embedding.h"
#include "strategies/sparse/touched_row_sums.h"

namespace convoy {

class ShardedRows : public RowExchange, private RowSource {
 public:
  // Collective. Takes the same tables in the same order on every rank. Creates a group, so that requests of forwards
  // may interleave with other messages. Outlives every look-up. `numbers`: compression of gradients to owners.
  ShardedRows(const CommunicatorPtr& group, std::vector<ParameterPtr> tables, Compression numbers = Compression::none);

  void begin() override;
  void expect(const Batch& batch) override;
  void run(const std::vector<at::Tensor>& dense) override;

 private:
  // Requested rows of a table, by number, and the destination of their values.
  struct Request {
    size_t table = 0;
    at::Tensor numbers, out;
  };
  using Lists = std::vector<std::vector<int64_t>>;  // by rank
  // Requested rows of one table, by owner.
  struct ByOwner {
    Lists positions;  // positions among the numbers
    Lists numbers;    // numbers, or indices at the owner
  };
  // Sizes of the first request messages, by rank.
  struct Sizes {
    std::vector<int64_t> out, in;
  };
  struct Message {
    at::Tensor bytes;
    int64_t length = 0;
  };
  Communicator& group() override { return *group_; }
  void fetch(int table, const at::Tensor& numbers, const at::Tensor& out, bool trained) override;
  void fetch_all(const std::vector<Request>& requests, bool trained);
  std::vector<ByOwner> split_by_owner(const std::vector<Request>& requests) const;
  int64_t requested_rows(int peer, size_t index) const;
  void exchange_requests(const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
                         const Sizes& sizes);
  std::vector<Lists> receive_requests(const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
                                      bool trained);
  Sizes& sizes_of(const std::vector<Request>& requests, bool trained);
  void write_request(int peer, const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
                     int64_t least);
  void serve(const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
             const std::vector<Lists>& requested);
  void look_up_local_rows(const Request& request, const std::vector<int64_t>& positions,
                          const std::vector<int64_t>& indices);
  void send_gradients(const std::vector<at::Tensor>& dense);
  void add_dense(const std::vector<at::Tensor>& dense);
  void add_rows();
  void compare_id_fields();
  void exchange(const std::string& name);  // transfers outgoing_ and incoming_
  void count_received(int64_t dense);      // counts the bytes of incoming_
  // Sets the length and reuses the memory.
  static Message& resized(Message& message, int64_t bytes);
  int64_t row_bytes(size_t table) const;
  const SparseRowBlocks& blocks(size_t table) const { return *tables_[table]->table->embedding().blocks(); }

  int rank_, ranks_;
  std::vector<Lists> order_;      // by table and owner: touched rows, in the order of requests
  std::vector<Lists> requested_;  // by table and requester: local row indices
  std::vector<RowSums> sums_;
  std::map<std::pair<size_t, size_t>, Sizes> sizes_;  // by first table and number of tables
  std::vector<Message> outgoing_, incoming_;          // by rank
  at::Tensor scratch_, local_dense_;
  int64_t dense_bytes_ = 0;
  int64_t received_ = 0;  // bytes of rows in this update
  // Field of the batch with a table's ids.
  enum : int64_t { unknown = -2, none = -1 };
  std::vector<int64_t> id_fields_;
  bool fields_known_ = false, prefetching_ = false;
  Batch batch_;  // batch of the current forwards; shows which field has ids
};

}  // namespace convoy
