// Phases of a rank (StateFile::phase) that others act on.
#pragma once

namespace convoy {
inline constexpr char crashed_phase[] = "crashed";  // its own thread did, whatever other ranks share its process
}  // namespace convoy
