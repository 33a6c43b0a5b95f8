// A map of tensors as a StateView.
#pragma once
#include "core/tensors/compare.h"

namespace convoy {

// `state` outlives the view.
inline StateView view_of(const std::map<std::string, at::Tensor>& state) {
  StateView view;
  for (const auto& entry : state) view.keys.push_back(entry.first);
  view.tensor = [&state](const std::string& key) { return state.at(key); };
  return view;
}

}  // namespace convoy
