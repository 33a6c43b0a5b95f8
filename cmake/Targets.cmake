# Libraries made from whole folders.
#
# Sources are globbed, so that a new strategy, backend, model or data set is one source file and no CMake edit:
# CONFIGURE_DEPENDS makes each build look again, which costs milliseconds. Folders may be empty.

# convoy_sources(OUT PATTERN...): the current folder's files that match, sorted.
function(convoy_sources out)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  file(GLOB found CONFIGURE_DEPENDS ${ARGN})
  list(SORT found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# convoy_sources_without_torch(OUT): the sources of the current folder that cmake/without_libtorch lists, sorted.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/without_libtorch)
function(convoy_sources_without_torch out)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  file(STRINGS ${PROJECT_SOURCE_DIR}/cmake/without_libtorch patterns REGEX "^${folder}/")
  list(TRANSFORM patterns REPLACE "^${folder}/" "")
  list(TRANSFORM patterns APPEND "/*.cpp")
  list(TRANSFORM patterns REPLACE "[.]cpp/[*][.]cpp$" ".cpp")  # a file, not a folder
  convoy_sources(found ${patterns})
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# convoy_unity(TARGET BYTES): compiles neighbouring sources as units of at most BYTES bytes; a line has about 40. Their
# headers cost more time than their own code: g++ takes 2 s for nlohmann/json.hpp and 6 s for torch/nn/module.h.
function(convoy_unity target most)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "[.]cpp$")
  set(unit 1)
  set(total 0)
  foreach(source IN LISTS sources)
    file(SIZE ${source} bytes)
    math(EXPR total "${total} + ${bytes}")
    if(total GREATER most)
      math(EXPR unit "${unit} + 1")
      set(total ${bytes})
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${unit})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${CONVOY_UNITY} UNITY_BUILD_MODE GROUP)
  if(CONVOY_UNITY)
    # Without this, g++ warns of members whose type is in an anonymous namespace of another file of the unit.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# convoy_library(NAME STATIC|SHARED|OBJECT SOURCE...): a library; its folder may be empty.
function(convoy_library name type)
  set(sources ${ARGN})
  if(NOT sources)
    set(sources ${PROJECT_BINARY_DIR}/empty.cpp)
    if(NOT EXISTS ${sources})
      file(WRITE ${sources} "// This folder has no sources yet.\n")
    endif()
  endif()
  add_library(${name} ${type} ${sources})
  set_target_properties(${name} PROPERTIES DEFINE_SYMBOL "")  # a further macro would not match the precompiled header
  convoy_unity(${name} 50000)
endfunction()

# convoy_use_torch(TARGET): LibTorch's headers through the one precompiled header.
function(convoy_use_torch target)
  target_link_libraries(${target} PRIVATE LibTorch::LibTorch)
  # Without it several headers of ATen include every operator, which costs each file a second.
  target_compile_definitions(${target} PRIVATE AT_PER_OPERATOR_HEADERS)
  if(CONVOY_PCH AND NOT target STREQUAL convoy_pch)
    target_precompile_headers(${target} REUSE_FROM convoy_pch)
  endif()
endfunction()
