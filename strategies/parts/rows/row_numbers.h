// Sizes of rows as messages hold them, without LibTorch.
#pragma once
#include <cstdint>
#include <limits>

namespace convoy {

// Of the number of one row, where the table has so many.
inline int64_t number_bytes(int64_t rows) { return rows <= std::numeric_limits<int32_t>::max() ? 4 : 8; }

// Parts of a message begin at multiples of 8.
inline int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

// In front of narrow numbers: the power of two that they were multiplied by (narrow_numbers.h), as an int64.
constexpr int64_t narrow_head = 8;
// Of so many numbers in 16 bits; 0 of none.
inline int64_t narrow_bytes(int64_t numbers) { return numbers == 0 ? 0 : narrow_head + padded(2 * numbers); }

}  // namespace convoy
