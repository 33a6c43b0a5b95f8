// Views of states: a map of tensors as a StateView, pieces of tensors, and the worst difference of two states.
#pragma once
#include <algorithm>

#include "core/state.h"
#include "core/tensors/compare.h"

namespace convoy {

// `state` outlives the view.
inline StateView view_of(const std::map<std::string, at::Tensor>& state) {
  StateView view;
  for (const auto& entry : state) view.keys.push_back(entry.first);
  view.tensor = [&state](const std::string& key) { return state.at(key); };
  return view;
}

// Returns a copy of the piece's elements of `whole`, in the piece's order.
inline at::Tensor piece_of(const at::Tensor& whole, const Piece& piece) {
  at::Tensor box = whole;
  for (size_t d = 0; d < piece.length.size(); ++d) box = box.narrow(int64_t(d), piece.offset[d], piece.length[d]);
  if (piece.flat) box = box.flatten().slice(0, piece.flat->first, piece.flat->second);
  return box.clone(at::MemoryFormat::Contiguous);
}

// Returns the entry with the largest error; null if there are no entries.
inline const TensorDifference* worst_of(const std::vector<TensorDifference>& differences) {
  const auto worst = std::max_element(differences.begin(), differences.end(),
                                      [](const auto& a, const auto& b) { return a.relative < b.relative; });
  return worst == differences.end() ? nullptr : &*worst;
}

}  // namespace convoy
