# How tests are built and registered; tests/CMakeLists.txt lists them.

# Environment of the scripts, with what Open MPI needs to run on two cores and as root. That is the user's choice, so
# only tests set it and never the program.
set(convoy_test_environment
    CONVOY_BUILD=${PROJECT_BINARY_DIR}
    CONVOY_SOURCE=${PROJECT_SOURCE_DIR}
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_mpi_yield_when_idle=1)
file(GLOB venv_python ${PROJECT_SOURCE_DIR}/.deps/venv/bin/python3)
if(venv_python)
  list(APPEND convoy_test_environment CONVOY_PYTHON=${venv_python})
else()
  list(APPEND convoy_test_environment CONVOY_PYTHON=python3)
endif()
# Sanitizers: a program takes several times as long, and reads its options and the files of suppressions from the
# environment.
set(convoy_time_factor 1)
if(CONVOY_SANITIZE)
  set(convoy_time_factor 10)
  set(suppressions ${PROJECT_SOURCE_DIR}/cmake/sanitizers)
  # g++ before 12.4 does not align vectors of 64 bytes in the frames that this check moves to the heap.
  set(use_after_return 1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12.4)
    set(use_after_return 0)
  endif()
  set(address_options detect_stack_use_after_return=${use_after_return})
  string(APPEND address_options :strict_string_checks=1:check_initialization_order=1)
  list(APPEND convoy_test_environment
       ASAN_OPTIONS=${address_options}
       LSAN_OPTIONS=suppressions=${suppressions}/leaks:print_suppressions=0
       UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
       TSAN_OPTIONS=suppressions=${suppressions}/threads:second_deadlock_stack=1:history_size=5:die_after_fork=0)
  # The thread sanitizer cannot see how threads of OpenMP, whose library is not instrumented, wait for each other.
  if(CONVOY_SANITIZE MATCHES thread)
    list(APPEND convoy_test_environment OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1)
  endif()
endif()
add_custom_target(sanitized)  # what `./check --asan` builds: the programs of the tests with the label "sanitized"

function(convoy_test_program folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  list(SORT sources)
  add_executable(${folder}_tests ${sources})
  target_link_libraries(${folder}_tests PRIVATE ${ARGN} GTest::gmock_main)
endfunction()

# convoy_unit_tests(FOLDER LIBRARY...): tests/FOLDER/** → FOLDER_tests, without LibTorch.
function(convoy_unit_tests folder)
  convoy_test_program(${folder} convoy_test_support ${ARGN}
                      convoy_strategies_catalogue convoy_backends_catalogue convoy_models_catalogue convoy_base)
  if(TARGET ${folder}_tests)
    convoy_unity(${folder}_tests 60000)
  endif()
endfunction()

# convoy_torch_tests(FOLDER): the same with all that convoy-rank has. Test programs link everything: layers are rules
# for sources, and layering.sh checks includes.
function(convoy_torch_tests folder)
  convoy_test_program(${folder} convoy_test_torch_support convoy_api convoy_backends convoy_launch convoy_core)
  if(TARGET ${folder}_tests)
    convoy_use_torch(${folder}_tests)
    convoy_unity(${folder}_tests 90000)
  endif()
endfunction()

# convoy_cases(OUT FOLDER WORD): sets OUT to ON if the name of a test case in FOLDER contains WORD. CMake looks this up
# when it configures; ./check configures each time.
function(convoy_cases out folder word)
  get_target_property(sources ${folder}_tests SOURCES)
  set(${out} OFF PARENT_SCOPE)
  foreach(source ${sources})
    file(STRINGS ${source} hits REGEX "^ *(TYPED_)?TEST.*${word}" LIMIT_COUNT 1)
    if(hits)
      set(${out} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# convoy_gtest_entry(FOLDER LABELS label... [TIMEOUT s] [EXCEPT pattern]): adds the test FOLDER, and FOLDER.gpu if a
# case needs a GPU. Leaves out cases of the pattern, which have a separate entry.
function(convoy_gtest_entry folder)
  if(NOT TARGET ${folder}_tests)
    return()
  endif()
  cmake_parse_arguments(entry "" "TIMEOUT;EXCEPT" "LABELS" ${ARGN})
  if(NOT entry_TIMEOUT)
    set(entry_TIMEOUT 120)
  endif()
  if(entry_EXCEPT)
    string(PREPEND entry_EXCEPT ":")
  endif()
  set(names ${folder})
  add_test(NAME ${folder} COMMAND ${folder}_tests --gtest_brief=1
           --gtest_filter=-*Gpu*:Mpi*${entry_EXCEPT})
  math(EXPR limit "${entry_TIMEOUT} * ${convoy_time_factor}")
  set_tests_properties(${folder} PROPERTIES LABELS "${entry_LABELS};sanitized" TIMEOUT ${limit})
  add_dependencies(sanitized ${folder}_tests)
  convoy_cases(gpu ${folder} Gpu)
  if(gpu)
    list(APPEND names ${folder}.gpu)
    add_test(NAME ${folder}.gpu COMMAND ${folder}_tests --gtest_filter=*Gpu*:-Mpi*)
    # A program whose every case skipped itself ends with 0. This matches when none passed and none failed, so that
    # ctest reports "skipped" for it, and a skip never hides a failure.
    set_tests_properties(${folder}.gpu PROPERTIES LABELS "gpu" TIMEOUT 300 RUN_SERIAL ON
      SKIP_REGULAR_EXPRESSION "PASSED  . 0 tests.[ \n]*(.  SKIPPED . [^\n]*\n)+$")
  endif()
  set_tests_properties(${names} PROPERTIES ENVIRONMENT "${convoy_test_environment}")
endfunction()

# convoy_mpi_entry(FOLDER RANKS): the Mpi* cases of FOLDER_tests, every rank running the same list.
function(convoy_mpi_entry folder ranks)
  if(NOT TARGET ${folder}_tests)
    return()
  endif()
  set(names ${folder}.mpi${ranks})
  set(launch ${MPIEXEC_EXECUTABLE} --bind-to none -n ${ranks} $<TARGET_FILE:${folder}_tests> --gtest_brief=1)
  add_test(NAME ${folder}.mpi${ranks} COMMAND ${launch} --gtest_filter=Mpi*)
  set_tests_properties(${folder}.mpi${ranks} PROPERTIES LABELS multi TIMEOUT 180)
  set_tests_properties(${names} PROPERTIES RUN_SERIAL ON ENVIRONMENT "${convoy_test_environment}")
endfunction()

# convoy_script_tests(FOLDER TIMEOUT): every .sh and .py of tests/FOLDER and its sub-folders as FOLDER.NAME. No other
# test runs at the same time. Exit 77 means skipped. A line `# labels: slow` in a script replaces the label.
function(convoy_script_tests folder timeout)
  set(here ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
  file(GLOB scripts CONFIGURE_DEPENDS ${here}/*.sh ${here}/*.py ${here}/*/*.py)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    if(name MATCHES "^_")
      continue()  # shared by the others
    endif()
    set(run bash)
    if(script MATCHES "\\.py$")
      set(run python3)
      if(venv_python)
        set(run ${venv_python})
      endif()
    endif()
    set(labels ${folder})
    set(limit ${timeout})
    file(STRINGS ${script} marks REGEX "^# (labels|timeout): ")
    foreach(mark ${marks})
      if(mark MATCHES "^# labels: (.*)$")
        string(REPLACE " " ";" labels "${CMAKE_MATCH_1}")
      elseif(mark MATCHES "^# timeout: ([0-9]+)$")
        set(limit ${CMAKE_MATCH_1})
      endif()
    endforeach()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
    add_test(NAME ${folder}.${name} COMMAND ${run} ${script} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${folder}.${name} PROPERTIES LABELS "${labels}" TIMEOUT ${limit} RUN_SERIAL ON
                         SKIP_RETURN_CODE 77 ENVIRONMENT "${convoy_test_environment}")
  endforeach()
endfunction()
