// As make_nccl.h.
#pragma once
#include <cstdint>

namespace convoy {

using LimitMemory = void(int64_t bytes);
inline constexpr char limit_memory_symbol[] = "convoy_limit_memory";

}  // namespace convoy

extern "C" convoy::LimitMemory convoy_limit_memory;
