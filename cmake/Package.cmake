# The build folder is a package for plugins: cmake -Dconvoy_DIR=/path/to/build, find_package(convoy), convoy::core.

configure_file(cmake/convoyConfig.cmake.in convoyConfig.cmake @ONLY)
include(CMakePackageConfigHelpers)
# Plugins see C++ interfaces, so only the same minor version fits.
write_basic_package_version_file(convoyConfigVersion.cmake VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
