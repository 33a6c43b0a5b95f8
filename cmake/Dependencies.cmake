# All dependencies except LibTorch; docs/dependencies.md explains each. Decides which backends this build can have:
# HAVE_MPI, HAVE_GLOO, HAVE_NCCL.

find_package(Threads REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)

find_path(CONVOY_ASIO_INCLUDE asio.hpp REQUIRED)
add_library(convoy_asio INTERFACE)
target_include_directories(convoy_asio SYSTEM INTERFACE ${CONVOY_ASIO_INCLUDE})
target_compile_definitions(convoy_asio INTERFACE ASIO_STANDALONE)
target_link_libraries(convoy_asio INTERFACE Threads::Threads)

find_path(CONVOY_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_path(CONVOY_HWLOC_INCLUDE hwloc.h REQUIRED)
find_library(CONVOY_HWLOC_LIBRARY hwloc REQUIRED)
find_path(CONVOY_DW_INCLUDE elfutils/libdwfl.h REQUIRED)
find_library(CONVOY_DW_LIBRARY dw REQUIRED)
find_path(CONVOY_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(CONVOY_TURBOJPEG_INCLUDE turbojpeg.h REQUIRED)
find_library(CONVOY_TURBOJPEG_LIBRARY turbojpeg REQUIRED)
find_path(CONVOY_RE2_INCLUDE re2/re2.h REQUIRED)
find_library(CONVOY_RE2_LIBRARY re2 REQUIRED)

# The wide library, because names on the screen may contain more than ASCII. Not CMake's find module, which would also
# test each candidate library with a C compiler.
find_path(CONVOY_NCURSES_INCLUDE ncurses.h REQUIRED)
find_library(CONVOY_NCURSES_LIBRARY ncursesw REQUIRED)
find_library(CONVOY_TINFO_LIBRARY tinfo)  # if it is a separate library

# The allocator of convoy-rank. Sanitizers bring their own.
find_library(CONVOY_JEMALLOC_LIBRARY jemalloc)
if(NOT CONVOY_JEMALLOC_LIBRARY)
  message(STATUS "Without jemalloc: a step of a light model takes up to an eighth more time")
endif()

set(HAVE_MPI OFF)
if(CONVOY_WITH_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(HAVE_MPI ON)
  endif()
endif()

set(HAVE_GLOO OFF)
if(CONVOY_WITH_GLOO)
  # Headers only, for the names of types: the code is inside libtorch_cpu, and libgloo.so would clash with it.
  find_path(CONVOY_GLOO_INCLUDE gloo/context.h)
  if(CONVOY_GLOO_INCLUDE)
    set(HAVE_GLOO ON)
  endif()
endif()

set(HAVE_NCCL OFF)
if(CONVOY_WITH_NCCL AND TARGET LibTorch::nccl)
  set(HAVE_NCCL ON)
endif()

mark_as_advanced(CONVOY_ASIO_INCLUDE CONVOY_CLI11_INCLUDE CONVOY_HWLOC_INCLUDE CONVOY_HWLOC_LIBRARY
                 CONVOY_DW_INCLUDE CONVOY_DW_LIBRARY
                 CONVOY_XXHASH_INCLUDE CONVOY_TURBOJPEG_INCLUDE CONVOY_TURBOJPEG_LIBRARY CONVOY_GLOO_INCLUDE
                 CONVOY_NCURSES_INCLUDE CONVOY_NCURSES_LIBRARY CONVOY_TINFO_LIBRARY
                 CONVOY_RE2_INCLUDE CONVOY_RE2_LIBRARY)
message(STATUS "backends: local, mpi ${HAVE_MPI}, gloo ${HAVE_GLOO}, nccl ${HAVE_NCCL}")
