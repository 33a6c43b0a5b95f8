// One factory per backend; a build that lacks a backend has its no_X.cpp instead, whose factory says how to get it.
#pragma once
#include <functional>

#include "core/registry.h"

namespace convoy {

using BackendFactory = std::function<CommunicatorPtr(const BackendRequest&)>;

BackendFactory local_backend();
BackendFactory gloo_backend();
BackendFactory mpi_backend();
BackendFactory nccl_backend();

// For no_X.cpp: a factory that throws Error(config) with the catalogue's words.
BackendFactory absent_backend(const std::string& name);

}  // namespace convoy
