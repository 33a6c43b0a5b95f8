# Read by CPack twice: for the settings of each kind of package, and when its files are staged.

if(NOT CPACK_TEMPORARY_DIRECTORY)
  # find_package searches /opt/convoy by itself. convoy also finds a LibTorch that is unpacked to /opt/libtorch.
  if(CPACK_GENERATOR STREQUAL DEB)
    set(CPACK_PACKAGING_INSTALL_PREFIX /opt/convoy)
  endif()
  return()
endif()

# Remove the path of this machine's LibTorch: on another machine, any user might own that path.
file(GLOB_RECURSE staged ${CPACK_TEMPORARY_DIRECTORY}/*)
foreach(file IN LISTS staged)
  set(rpath "")
  if(file MATCHES "/bin/convoy-rank$")
    set(rpath "${CPACK_CONVOY_RPATH_BIN}")
  elseif(file MATCHES "/lib/libconvoy[a-z_]*\\.so$")
    set(rpath "${CPACK_CONVOY_RPATH_LIB}")
  elseif(file MATCHES "/convoyConfig\\.cmake$")
    string(REGEX REPLACE "/lib$" "" torch "${CPACK_CONVOY_TORCH}")
    file(READ ${file} text)
    string(REPLACE ";${torch}" "" text "${text}")
    file(WRITE ${file} "${text}")
  endif()
  if(rpath)
    list(JOIN rpath ":" rpath)
    file(RPATH_CHANGE FILE ${file} OLD_RPATH "${rpath}:${CPACK_CONVOY_TORCH}" NEW_RPATH "${rpath}")
  endif()
endforeach()

if(CPACK_GENERATOR STREQUAL DEB)
  file(MAKE_DIRECTORY ${CPACK_TEMPORARY_DIRECTORY}/usr/bin)
  file(CREATE_LINK /opt/convoy/bin/convoy ${CPACK_TEMPORARY_DIRECTORY}/usr/bin/convoy SYMBOLIC)
endif()
