# Language, flags, linker and compiler cache for all code of convoy.

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# Without NDEBUG, LibTorch's headers define classes with other members than its library has.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g -DNDEBUG")

# -fPIC by hand and not through POSITION_INDEPENDENT_CODE, which gives programs -fPIE: all targets share one precompiled
# header, which requires equal flags for every object.
add_compile_options(-fPIC -Wall -Wextra)
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-unknown-warning-option)
else()
  add_compile_options(-Werror)  # other compilers have other warnings
  # With LibTorch's headers, g++ spends a seventh of its time on garbage collection. Without it, g++ takes 1.2 GB.
  add_compile_options(--param=ggc-min-heapsize=1000000)
endif()
# No code reads errno or floating-point traps, and without them loops over sqrt vectorise. No -march: the binary must
# run on other machines than the one that built it.
add_compile_options(-fno-math-errno -fno-trapping-math)
# Calls within libconvoy_core stay direct although its symbols are exported.
add_compile_options(-fno-semantic-interposition)

# Messages name files from the root of the tree, wherever it was built.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

if(CONVOY_SANITIZE)
  # The inserted checks more than double the compiler's time; -O0 halves it. -g1 is enough for files and lines.
  add_compile_options(-fsanitize=${CONVOY_SANITIZE} -fno-omit-frame-pointer -O0 -g1)
  add_link_options(-fsanitize=${CONVOY_SANITIZE})
  # Also checks indices of containers. The sanitizers miss a wrong index that points into allocated memory.
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++'s inserted checks confuse these two warnings. The release build still has them.
    add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow)
  endif()
  if(CONVOY_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-tsan)  # warns of fences; those of core/rank_state order atomic accesses only
  endif()
endif()

find_program(CONVOY_LLD ld.lld)
if(CONVOY_LLD)
  add_link_options(-fuse-ld=lld)
endif()

find_program(CONVOY_CCACHE ccache)
mark_as_advanced(CONVOY_LLD CONVOY_CCACHE)
if(CONVOY_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these sloppiness settings (ccache's manual, "Precompiled headers"); the base directory lets
  # another clone hit the same entries.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1
      ${CONVOY_CCACHE})
  add_compile_options(-fpch-preprocess)
endif()
