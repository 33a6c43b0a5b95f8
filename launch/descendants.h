// Everything that came from our children, also what left their process group or session: this process is its subreaper.
#pragma once
#include <sys/types.h>

#include <vector>

namespace convoy {

// From here on, descendants whose parent ended become children of this process.
void become_subreaper();

// All living descendants of `ancestor`, by /proc; zombies are left out.
std::vector<pid_t> descendants_of(pid_t ancestor);

// SIGKILLs every descendant of this process and reaps them, again and again until there are none or `milliseconds` have
// passed. True when none is left.
bool kill_descendants(int milliseconds);

}  // namespace convoy
