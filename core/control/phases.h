// Phases of a rank (StateFile::phase) that others act on.
#pragma once
#include <string>

namespace convoy {

inline constexpr char crashed_phase[] = "crashed";  // its own thread did, whatever other ranks share its process
inline constexpr char starting_phase[] = "starting";
inline constexpr char reading_phase[] = "reading data";
inline constexpr char rendezvous_phase[] = "rendezvous";
inline constexpr char building_phase[] = "building the model";
inline constexpr char loading_phase[] = "loading";  // a checkpoint

// Before the first step. Each of these phases must end within launch.rendezvous.
inline bool is_set_up(const std::string& phase) {
  return phase.empty() || phase == starting_phase || phase == reading_phase || phase == rendezvous_phase ||
         phase == building_phase || phase == loading_phase;
}

// A phase that takes as long as its files are large: the limit counts from the last sign of progress.
inline bool reads_files(const std::string& phase) { return phase == reading_phase || phase == loading_phase; }

}  // namespace convoy
