# Installation, the CMake package for programs and plugins, and archives.
#
#   P/bin      convoy, convoy-rank
#   P/lib      libconvoy.so and the libraries that it needs, without LibTorch
#   P/include  convoy/*.h, and the headers of core that these include, as convoy/core/…
#   P/lib/cmake/convoy     find_package(convoy): convoy::convoy for programs, convoy::core for plugins
#   P/share/convoy             examples (projects to copy), configs with their JSON schema, tools/dump_reference.py
#   P/share        completion for bash, zsh and fish, and the manual page, where these programs look for them
#
# The tree may be moved: every path within it is relative. The build folder is a package too: -Dconvoy_DIR=BUILD.

include(CMakePackageConfigHelpers)

# Folders where a program finds LibTorch at its start: next to the installation, else where this build found it.
# LD_LIBRARY_PATH precedes both; convoy sets it from Torch_DIR.
set(beside "\$ORIGIN/../libtorch/lib" "\$ORIGIN/../../libtorch/lib")
set(rpath_bin "\$ORIGIN/../lib" ${beside})
set(rpath_lib "\$ORIGIN" ${beside})

foreach(target convoy convoy-rank)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath_bin};${CONVOY_TORCH_ROOT}/lib")
  install(TARGETS ${target} RUNTIME DESTINATION bin)
endforeach()
set_target_properties(convoy PROPERTIES INSTALL_RPATH "")  # it links no library of ours
foreach(target convoy_core convoy_backends convoy_cuda convoy_api)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath_lib};${CONVOY_TORCH_ROOT}/lib")
    install(TARGETS ${target} LIBRARY DESTINATION lib)
  endif()
endforeach()

install(CODE "set(from \"${PROJECT_SOURCE_DIR}\")\nset(to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/include\")")
install(SCRIPT cmake/install_headers.cmake)

install(FILES LICENSE DESTINATION share/doc/convoy RENAME copyright)
install(FILES launch/report/page/uplot/LICENSE DESTINATION share/doc/convoy RENAME copyright.uPlot)
install(DIRECTORY docs/examples/ DESTINATION share/convoy/examples)
install(DIRECTORY configs/ DESTINATION share/convoy/configs FILES_MATCHING PATTERN "*.yaml" PATTERN "schema.json")
install(FILES tools/dump_reference.py DESTINATION share/convoy/tools)

# --- files that convoy makes for shells and man ---

set(made ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${made})
# convoy_made(FILE DESTINATION ARGUMENT...): installs the output of `convoy list ARGUMENT...` as DESTINATION/FILE.
function(convoy_made file destination)
  add_custom_command(OUTPUT ${made}/${file} COMMAND convoy list ${ARGN} > ${made}/${file} DEPENDS convoy VERBATIM)
  install(FILES ${made}/${file} DESTINATION ${destination})
endfunction()
convoy_made(convoy share/bash-completion/completions --completion bash)
convoy_made(_convoy share/zsh/site-functions --completion zsh)
convoy_made(convoy.fish share/fish/vendor_completions.d --completion fish)
convoy_made(convoy.1 share/man/man1 --man)
add_custom_target(convoy_generated ALL DEPENDS ${made}/convoy ${made}/_convoy ${made}/convoy.fish ${made}/convoy.1)

# --- find_package(convoy) ---

# Writes convoyConfig.cmake for the build folder or for an installation. Paths may use ${here}, the folder of the file.
function(convoy_write_config file)
  cmake_parse_arguments(PARSE_ARGV 1 tree "" "API;BACKENDS;CORE" "INCLUDE;TORCH")
  configure_file(cmake/convoyConfig.cmake.in ${file} @ONLY)
endfunction()

convoy_write_config(${PROJECT_BINARY_DIR}/convoyConfig.cmake
  API "\${here}/api/libconvoy.so" BACKENDS "\${here}/backends/libconvoy_backends.so"
  CORE "\${here}/core/libconvoy_core.so"
  INCLUDE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}
  TORCH ${CONVOY_TORCH_ROOT})
convoy_write_config(${PROJECT_BINARY_DIR}/installed/convoyConfig.cmake
  API "\${here}/../../libconvoy.so" BACKENDS "\${here}/../../libconvoy_backends.so"
  CORE "\${here}/../../libconvoy_core.so"
  INCLUDE "\${here}/../../../include"
  TORCH "\${here}/../../../libtorch" "\${here}/../../../../libtorch" ${CONVOY_TORCH_ROOT})
# Programs and plugins see C++ interfaces, so only the same minor version fits.
foreach(folder . installed)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/${folder}/convoyConfigVersion.cmake
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
  configure_file(cmake/LibTorch.cmake ${PROJECT_BINARY_DIR}/${folder}/convoyLibTorch.cmake COPYONLY)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/installed/convoyConfig.cmake
              ${PROJECT_BINARY_DIR}/installed/convoyConfigVersion.cmake
              ${PROJECT_BINARY_DIR}/installed/convoyLibTorch.cmake
        DESTINATION lib/cmake/convoy)

# --- archives: cpack --config build/CPackConfig.cmake ---

set(CPACK_GENERATOR "TGZ;DEB")
set(CPACK_PACKAGE_NAME convoy)
set(CPACK_PACKAGE_VENDOR "convoy")
set(CPACK_PACKAGE_CONTACT "convoy")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed training in C++ on LibTorch")
set(CPACK_PACKAGE_FILE_NAME "convoy-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# dpkg-shlibdeps finds the packages of all libraries; those of LibTorch belong to none.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CONVOY_TORCH_ROOT}/lib)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, cmake, g++, ninja-build")
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package.cmake)
set(CPACK_CONVOY_RPATH_BIN "${rpath_bin}")
set(CPACK_CONVOY_RPATH_LIB "${rpath_lib}")
set(CPACK_CONVOY_TORCH ${CONVOY_TORCH_ROOT}/lib)
include(CPack)
