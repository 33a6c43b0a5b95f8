// Shape functions (kernels for the meta device) of operators for which LibTorch has none in C++: convolution,
// normalisations, embedding, attention on the CPU, and a few more that common models use.
#pragma once

namespace torch {
class Library;
}

namespace convoy {

// `aten`: an IMPL library of the namespace aten and the dispatch key Meta. The functions stay as long as it does.
void add_shape_functions(torch::Library& aten);

}  // namespace convoy
