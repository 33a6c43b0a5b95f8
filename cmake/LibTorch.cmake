# LibTorch as imported targets of convoy.
#
# find_package(Torch) requires an installed CUDA toolkit, but convoy never calls its compiler. convoy needs four
# libraries and some headers. All are in the Python wheel and its siblings (nvidia/cu13, nvidia/nccl), or in an unpacked
# LibTorch.
#
#   LibTorch::LibTorch   headers, and libraries without the CUDA half
#   LibTorch::cuda       the CUDA half; only if LibTorch has one
#   LibTorch::nccl       headers of CUDA and NCCL, for backends/cuda/; only if the wheel has them
#
# Used by the build of convoy, and by projects that find_package(convoy), whose package has a copy of this file.
# In: CONVOY_TORCH_PLACES, folders to look at, patterns allowed, and CONVOY_TORCH_BUILT, the version that convoy was
#   built with; empty in its own build.
# Sets CONVOY_TORCH_ROOT (the folder that holds include/ and lib/), CONVOY_TORCH_VERSION and CONVOY_TORCH_CUDA.

set(CONVOY_TORCH_NEEDED 2.11)

# Caches Torch_DIR, because a later build may run CMake in a shell without it. The cached variable has another name:
# find_package(Torch) also uses Torch_DIR, for the folder of TorchConfig.cmake.
if(DEFINED ENV{Torch_DIR})
  set(CONVOY_TORCH_NAMED "$ENV{Torch_DIR}" CACHE PATH "LibTorch to use, if not the one that is found" FORCE)
elseif(Torch_DIR)
  set(CONVOY_TORCH_NAMED "${Torch_DIR}" CACHE PATH "LibTorch to use, if not the one that is found" FORCE)
endif()

# Looks at Torch_DIR, CMAKE_PREFIX_PATH, CONVOY_TORCH_PLACES and the torch that Python would import, in this order.
function(convoy_locate_torch out)
  set(root "")
  if(CONVOY_TORCH_NAMED)
    string(REGEX REPLACE "/(share/cmake/Torch/?)?$" "" root "${CONVOY_TORCH_NAMED}")
    if(NOT EXISTS "${root}/lib/libtorch_cpu.so")
      message(FATAL_ERROR "Torch_DIR=${CONVOY_TORCH_NAMED} holds no LibTorch (no ${root}/lib/libtorch_cpu.so). It has "
                          "to be the folder above include/ and lib/, or share/cmake/Torch within it.")
    endif()
  endif()
  foreach(place IN LISTS CMAKE_PREFIX_PATH CONVOY_TORCH_PLACES)
    file(GLOB found ${place}/lib/libtorch_cpu.so)
    if(found AND NOT root)
      list(GET found 0 root)
      string(REPLACE "/lib/libtorch_cpu.so" "" root "${root}")
    endif()
  endforeach()
  if(NOT root)
    execute_process(
      COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE root ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    # Caches this path too: a later shell may have another python3.
    set(CONVOY_TORCH_NAMED "${root}" CACHE PATH "LibTorch to use, if not the one that is found" FORCE)
  endif()
  if(NOT root OR NOT EXISTS "${root}/lib/libtorch_cpu.so")
    if(CONVOY_TORCH_BUILT)
      list(GET CONVOY_TORCH_PLACES 0 place)
      get_filename_component(place "${place}" ABSOLUTE)
      message(FATAL_ERROR "convoy needs LibTorch ${CONVOY_TORCH_BUILT}, which is not here. Unpack one to ${place}, or "
                          "name one that you have: cmake -DTorch_DIR=/path/to/libtorch …")
    endif()
    message(FATAL_ERROR "LibTorch is not here. ./quickstart and ./check install it into .deps/venv; or name one that "
                        "you have: cmake -DTorch_DIR=/path/to/torch …")
  endif()
  get_filename_component(root "${root}" ABSOLUTE)
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

function(convoy_check_torch root)
  set(PACKAGE_VERSION "")
  set(PACKAGE_FIND_VERSION "")
  include(${root}/share/cmake/Torch/TorchConfigVersion.cmake OPTIONAL)
  if(NOT PACKAGE_VERSION)
    message(FATAL_ERROR "${root} does not say which version of LibTorch it is "
                        "(no share/cmake/Torch/TorchConfigVersion.cmake)")
  endif()
  string(REGEX MATCH "^[0-9.]+" version "${PACKAGE_VERSION}")
  if(version VERSION_LESS CONVOY_TORCH_NEEDED OR version VERSION_GREATER_EQUAL 3)
    message(FATAL_ERROR "${root} is LibTorch ${PACKAGE_VERSION}; convoy needs ${CONVOY_TORCH_NEEDED} or a later 2.x. "
                        "Unset Torch_DIR and run ./quickstart to get one.")
  endif()
  string(REGEX MATCH "^[0-9]+[.][0-9]+" minor "${version}")
  if(CONVOY_TORCH_BUILT AND NOT CONVOY_TORCH_BUILT MATCHES "^${minor}([.]|$)")
    message(FATAL_ERROR "${root} is LibTorch ${PACKAGE_VERSION}, and this convoy was built with ${CONVOY_TORCH_BUILT}; "
                        "their C++ interfaces differ. Name another one by Torch_DIR, or build convoy with this one.")
  endif()
  # The mangled names show the ABI; the package's own statement may be wrong.
  file(STRINGS ${root}/lib/libc10.so new_abi REGEX "__cxx11" LIMIT_COUNT 1)
  if(NOT new_abi)
    message(FATAL_ERROR "${root} was built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), which the system's "
                        "libraries do not link with. Take a build with the C++11 ABI.")
  endif()
  set(CONVOY_TORCH_VERSION ${version} PARENT_SCOPE)
endfunction()

if(NOT CONVOY_TORCH_ROOT)
  convoy_locate_torch(CONVOY_TORCH_ROOT)
endif()
convoy_check_torch(${CONVOY_TORCH_ROOT})

get_filename_component(site ${CONVOY_TORCH_ROOT} DIRECTORY)
file(GLOB nvidia_libs ${site}/nvidia/*/lib)
file(GLOB cuda_header ${site}/nvidia/*/include/cuda_runtime_api.h)
file(GLOB nccl_header ${site}/nvidia/*/include/nccl.h)
set(CONVOY_TORCH_CUDA OFF)
if(EXISTS ${CONVOY_TORCH_ROOT}/lib/libtorch_cuda.so)
  set(CONVOY_TORCH_CUDA ON)
endif()

function(convoy_import_torch)
  set(lib ${CONVOY_TORCH_ROOT}/lib)
  set(halves LibTorch)
  set(LibTorch_parts c10 torch_cpu)
  if(CONVOY_TORCH_CUDA)
    list(APPEND halves cuda)
    set(cuda_parts c10_cuda torch_cuda)
  endif()
  foreach(half ${halves})
    add_library(LibTorch::${half} INTERFACE IMPORTED GLOBAL)
    foreach(part ${${half}_parts})
      add_library(LibTorch::${part} SHARED IMPORTED GLOBAL)
      set_target_properties(LibTorch::${part} PROPERTIES IMPORTED_LOCATION ${lib}/lib${part}.so)
      target_link_libraries(LibTorch::${half} INTERFACE LibTorch::${part})
    endforeach()
  endforeach()
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    ${CONVOY_TORCH_ROOT}/include ${CONVOY_TORCH_ROOT}/include/torch/csrc/api/include)
  # No code calls the CUDA half by name: its kernels register themselves when its libraries are loaded. A linker that
  # drops unused libraries would drop the GPU.
  target_link_options(LibTorch::LibTorch INTERFACE LINKER:--no-as-needed)
  foreach(dir ${lib} ${nvidia_libs})
    target_link_options(LibTorch::LibTorch INTERFACE LINKER:-rpath-link,${dir})
  endforeach()
endfunction()

# CUDA 13's wheels hold the runtime's headers without the folders crt/ and nv/, which quickstart fetches separately.
function(convoy_import_nccl)
  set(dirs "")
  foreach(header ${cuda_header} ${nccl_header})
    get_filename_component(dir ${header} DIRECTORY)
    list(APPEND dirs ${dir})
  endforeach()
  file(GLOB fetched ${PROJECT_SOURCE_DIR}/.deps/cuda-headers/nvidia/*/include)
  foreach(needed crt/host_config.h nv/target)
    unset(place CACHE)
    find_path(place ${needed} HINTS ${dirs} ${fetched})
    if(NOT place)
      message(WARNING "NCCL is left out: CUDA's ${needed} is neither beside LibTorch nor on the system. ./quickstart "
                      "fetches it; by hand: pip install --target .deps/cuda-headers nvidia-cuda-crt nvidia-cuda-cccl")
      return()
    endif()
    list(APPEND dirs ${place})
    unset(place CACHE)
  endforeach()
  list(REMOVE_DUPLICATES dirs)
  add_library(LibTorch::nccl INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::nccl SYSTEM INTERFACE ${dirs})
endfunction()

if(NOT TARGET LibTorch::LibTorch)
  convoy_import_torch()
  if(CONVOY_TORCH_CUDA AND cuda_header AND nccl_header AND NOT CONVOY_TORCH_BUILT)
    convoy_import_nccl()
  endif()
endif()

if(CONVOY_TORCH_CUDA)
  message(STATUS "LibTorch ${CONVOY_TORCH_VERSION} with CUDA: ${CONVOY_TORCH_ROOT}")
else()
  message(STATUS "LibTorch ${CONVOY_TORCH_VERSION} for CPUs: ${CONVOY_TORCH_ROOT}")
endif()
