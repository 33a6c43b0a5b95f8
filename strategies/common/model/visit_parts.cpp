#include "strategies/common/model/visit_parts.h"

#include "strategies/common/layers/sparse_table.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {
namespace {

// Decides which entries this rank writes.
class Owners {
 public:
  Owners(const StateOwner& owner, int64_t parameter_bytes)
      : index_(owner.index), owners_(owner.count, double(parameter_bytes)) {}
  bool next(const at::Tensor& tensor) { return owners_.next(double(tensor.nbytes())) == index_; }

 private:
  int index_;
  StateOwners owners_;
};

Owners owners_of(const FlatParameters& flat, const Update& update, const StateOwner& owner) {
  int64_t bytes = 0;
  for (const ParameterPtr& parameter : flat.parameters()) bytes += int64_t(parameter->value.nbytes());
  for (const ParameterPtr& table : update.tables())
    if (!table->table->is_sharded()) bytes += int64_t(table->value.nbytes());
  return Owners(owner, bytes);
}

// A shard is on one rank only.
bool owns_table(Owners& owners, const ParameterPtr& table, const at::Tensor& tensor) {
  return table->table->is_sharded() || owners.next(tensor);
}

// Visits a parameter or a tensor of its shape: one entry for each local piece of the whole.
void visit_pieces(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                  bool owner, const StateVisitor& visit, bool stale = false, const at::Tensor& copy = {}) {
  StateEntry entry = state_entry(parameter.name, kind, tensor, owner && parameter.counted);
  entry.moment = moment;
  entry.stale = stale;
  entry.copy = copy;
  if (parameter.held.empty()) return visit(entry);
  for (const LocalPiece& held : parameter.held) {
    entry.piece = held.piece;
    entry.tensor = tensor.detach().slice(0, held.begin, held.end);
    if (copy.defined()) entry.copy = copy.slice(0, held.begin, held.end);
    visit(entry);
  }
}

}  // namespace

StateEntry state_entry(const std::string& name, StateKind kind, const at::Tensor& tensor, bool owner) {
  StateEntry entry;
  entry.name = name;
  entry.kind = kind;
  entry.piece = Piece::whole(tensor.sizes());
  entry.tensor = tensor.detach();
  entry.owner = owner;
  return entry;
}

void visit_parts(const std::vector<ModelPart*>& parts, const FlatParameters& flat, Update& update,
                 const StateOwner& owner, const StateVisitor& visit) {
  Owners owners = owners_of(flat, update, owner);
  for (const ParameterPtr& parameter : flat.parameters())
    visit_pieces(*parameter, StateKind::parameter, "", parameter->value, owners.next(parameter->value), visit);
  const auto owns = [&owners](const ParameterPtr& table, const at::Tensor& tensor) {
    return owns_table(owners, table, tensor);
  };
  for (size_t index = 0; index < update.tables().size(); ++index) {
    const ParameterPtr& table = update.tables()[index];
    visit_pieces(*table, StateKind::parameter, "", table->value, owns(table, table->value), visit,
                 update.table_stale(index), update.table_copy(index, 0));
  }
  visit_untrained(parts, owner.index == 0, visit);
  for (size_t index = 0; index < flat.parameters().size(); ++index)
    for (const auto& [moment, tensor] : update.moments(index))
      visit_pieces(*flat.parameters()[index], StateKind::moment, moment, tensor, owners.next(tensor), visit);
  for (size_t index = 0; index < update.tables().size(); ++index) {
    size_t number = 0;
    for (const auto& [moment, tensor] : update.table_moments(index))
      visit_pieces(*update.tables()[index], StateKind::moment, moment, tensor, owns(update.tables()[index], tensor),
                   visit, update.table_stale(index), update.table_copy(index, ++number));
  }
  visit_counters(update, owner.first_of_job, visit);
}

void visit_gradients(const FlatParameters& flat, const Update& update, const StateOwner& owner,
                     const StateVisitor& visit) {
  Owners owners = owners_of(flat, update, owner);
  for (size_t index = 0; index < flat.parameters().size(); ++index) {
    const at::Tensor gradient = update.gradient(index);
    if (gradient.defined())
      visit_pieces(*flat.parameters()[index], StateKind::gradient, "", gradient, owners.next(gradient), visit);
  }
  for (size_t index = 0; index < update.tables().size(); ++index) {
    const ParameterPtr& table = update.tables()[index];
    const at::Tensor gradient = update.table_gradient(index);
    if (gradient.defined())
      visit_pieces(*table, StateKind::gradient, "", gradient, owns_table(owners, table, gradient), visit);
  }
}

void visit_untrained(const std::vector<ModelPart*>& parts, bool owner, const StateVisitor& visit) {
  for (const ModelPart* part : parts) {
    for (const ParameterPtr& parameter : part->frozen())
      visit_pieces(*parameter, StateKind::parameter, "", parameter->value, owner, visit);
    for (const NamedBuffer& buffer : part->buffers())
      visit(state_entry(buffer.name, StateKind::buffer, buffer.value, owner && part->store()->counts));
  }
}

void visit_range(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                 int64_t begin, int64_t end, const StateVisitor& visit) {
  const at::Tensor& value = parameter.value;
  std::vector<LocalPiece> pieces = parameter.held;
  if (pieces.empty()) pieces = {{0, value.dim() == 0 ? 1 : value.size(0), Piece::whole(value.sizes())}};
  const int64_t row = value.dim() == 0 || value.size(0) == 0 ? 1 : value.numel() / value.size(0);
  StateEntry entry = state_entry(parameter.name, kind, tensor, parameter.counted);
  entry.moment = moment;
  for (const LocalPiece& held : pieces) {
    const int64_t first = held.begin * row, last = held.end * row;
    const int64_t from = std::max(begin, first), to = std::min(end, last);
    if (from >= to) continue;
    entry.piece = held.piece;
    entry.tensor = tensor.detach().narrow(0, from - begin, to - from);
    if (from == first && to == last)
      entry.tensor = entry.tensor.view(held.piece.length);
    else
      entry.piece.flat = {from - first, to - first};
    visit(entry);
  }
}

void visit_counters(const Update& update, bool owner, const StateVisitor& visit) {
  for (const auto& [name, tensor] : update.counters()) visit(state_entry(name, StateKind::counter, tensor, owner));
}

std::vector<NamedBuffer> buffers_of(const std::vector<ModelPart*>& parts) {
  std::vector<NamedBuffer> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->buffers().begin(), part->buffers().end());
  return all;
}

}  // namespace convoy
