// Views of states: a map of tensors as a StateView, and pieces of tensors.
#pragma once
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

// The piece's elements of `whole`, in its own order; a copy.
inline at::Tensor piece_of(const at::Tensor& whole, const Piece& piece) {
  at::Tensor box = whole;
  for (size_t d = 0; d < piece.length.size(); ++d) box = box.narrow(int64_t(d), piece.offset[d], piece.length[d]);
  if (piece.flat) box = box.flatten().slice(0, piece.flat->first, piece.flat->second);
  return box.clone(at::MemoryFormat::Contiguous);
}

}  // namespace convoy
