// Product of a matrix and a vector, bound by memory: every weight is read once. A library's call costs more than the
// product for the layers of a small model.
//
// CPU, fp32, with the widest instructions of the machine, as core/tensors/skinny_product.h. The result does not depend
// on the number of threads. Threads: any; a large product uses the intra-op threads.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

// out [rows] = matrix [rows, depth] · vector [depth] + first [rows]; null: without `first`. `apart`: distance between
// rows of the matrix.
using MatrixVector = void (*)(const float* matrix, const float* vector, const float* first, float* out, int64_t rows,
                              int64_t depth, int64_t apart);
// Loops that this machine can run, widest first.
const std::vector<MatrixVector>& matrix_vector_loops();

// The widest loop, by several threads if the matrix is large.
void matrix_vector(const float* matrix, const float* vector, const float* first, float* out, int64_t rows,
                   int64_t depth);

}  // namespace convoy
