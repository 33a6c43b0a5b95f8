// Jobs for tests: threads of this process over the backend `local`, each with a Job and one control channel for all.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "api/job_impl.h"

namespace convoy {

// Calls `body` on every rank. `settings`: those of --set, such as "seed=3"; `device` is cpu. Throws the exception of
// the rank that failed first; a rank that only lost a peer did not fail first.
void test_jobs(int size, const std::function<void(Job&)>& body, const std::vector<std::string>& settings = {});

}  // namespace convoy
