#include "strategies/parts/replicated_state.h"

#include <algorithm>

namespace convoy {
namespace {

// Below this much a second file costs more than it saves.
constexpr int64_t spread_from = int64_t{64} << 20;

// Deals entries out, each to the rank with the least so far.
class Owners {
 public:
  Owners(int rank, int size, bool spread) : rank_(rank), bytes_(spread ? static_cast<size_t>(size) : 1, 0) {}
  bool next(const at::Tensor& tensor) {
    const auto least = std::min_element(bytes_.begin(), bytes_.end());
    *least += static_cast<int64_t>(tensor.nbytes());
    return least - bytes_.begin() == rank_;
  }

 private:
  int rank_;
  std::vector<int64_t> bytes_;
};

StateEntry entry_of(const std::string& name, StateKind kind, const at::Tensor& tensor, bool owner) {
  StateEntry entry;
  entry.name = name;
  entry.kind = kind;
  entry.piece = Piece::whole(tensor.sizes());
  entry.tensor = tensor.detach();
  entry.owner = owner;
  return entry;
}

}  // namespace

void visit_replicated_state(const Replica& replica, const FlatParameters& flat, Update& update, int rank, int size,
                            const StateVisitor& visit) {
  int64_t bytes = 0;
  for (const ParameterPtr& parameter : flat.parameters()) bytes += static_cast<int64_t>(parameter->value.nbytes());
  Owners owners(rank, size, bytes >= spread_from);
  for (const ParameterPtr& parameter : flat.parameters())
    visit(entry_of(parameter->name, StateKind::parameter, parameter->value, owners.next(parameter->value)));
  for (const ParameterPtr& parameter : replica.frozen())
    visit(entry_of(parameter->name, StateKind::parameter, parameter->value, rank == 0));
  for (const NamedBuffer& buffer : replica.buffers())
    visit(entry_of(buffer.name, StateKind::buffer, buffer.value, rank == 0));
  for (size_t index = 0; index < flat.parameters().size(); ++index) {
    for (const auto& [moment, tensor] : update.moments(index)) {
      StateEntry entry = entry_of(flat.parameters()[index]->name, StateKind::moment, tensor, owners.next(tensor));
      entry.moment = moment;
      visit(entry);
    }
  }
  for (size_t index = 0; index < flat.parameters().size(); ++index) {
    const at::Tensor gradient = update.gradient(index);
    if (gradient.defined())
      visit(entry_of(flat.parameters()[index]->name, StateKind::gradient, gradient, owners.next(gradient)));
  }
  visit(entry_of("updates", StateKind::counter, update.count(), rank == 0));
}

}  // namespace convoy
