// Numbers of a table's rows as messages hold them, without LibTorch.
#pragma once
#include <cstdint>
#include <limits>

namespace convoy {

// Of one number, where the table has so many rows.
inline int64_t number_bytes(int64_t rows) { return rows <= std::numeric_limits<int32_t>::max() ? 4 : 8; }

// Parts of a message begin at multiples of 8.
inline int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace convoy
