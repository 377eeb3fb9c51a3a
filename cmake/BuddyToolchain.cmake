# Finds what a build needs besides a C++ compiler: Python with our packages, LLVM's tools and, where buddy-opt is
# built, MLIR's libraries. BUDDY_TOOLCHAIN says where LLVM comes from:
#   wheels  the xtc-* wheels in the Python environment (the default; needs no root)
#   system  an installed LLVM, such as Debian's llvm-22-dev, libmlir-22-dev and mlir-22-tools
include_guard(GLOBAL)

set(BUDDY_LLVM_VERSION 22.1)

# buddy_option(NAME default help): a cache variable that can also be given in the environment, since
# `cmake --workflow` takes no -D. -D wins over the environment, a new environment over what was remembered.
function(buddy_option name default help)
  set(environment "$ENV{${name}}")
  if(DEFINED CACHE{${name}} AND NOT "$CACHE{${name}}" STREQUAL "$CACHE{BUDDY_LAST_${name}}")
    set_property(CACHE ${name} PROPERTY TYPE STRING)
    set_property(CACHE ${name} PROPERTY HELPSTRING "${help}")
  elseif(NOT environment STREQUAL "" AND NOT environment STREQUAL "$CACHE{BUDDY_ENVIRONMENT_${name}}")
    set(${name} "${environment}" CACHE STRING "${help}" FORCE)
  else()
    set(${name} "${default}" CACHE STRING "${help}")
  endif()
  set(BUDDY_LAST_${name} "$CACHE{${name}}" CACHE INTERNAL "value after the last configure")
  if(NOT environment STREQUAL "")
    set(BUDDY_ENVIRONMENT_${name} "${environment}" CACHE INTERNAL "the environment's last value")
  endif()
endfunction()

# buddy_find_python(PYPROJECT file VENV dir [EXTRAS extra...]): sets BUDDY_PYTHON. An interpreter given with
# -DPython3_EXECUTABLE is used as it is; otherwise VENV is made, with the versions that the project file pins.
function(buddy_find_python)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "PYPROJECT;VENV" "EXTRAS")
  set(command create --venv "${ARG_VENV}")
  if(DEFINED CACHE{Python3_EXECUTABLE})
    set(command check)
  endif()
  find_package(Python3 3.11 COMPONENTS Interpreter)
  if(NOT Python3_Interpreter_FOUND)
    message(
      FATAL_ERROR
      "Python 3.11 or newer was not found; install it (Debian: apt install python3 python3-venv) "
      "or name one with -DPython3_EXECUTABLE=PATH."
    )
  endif()
  list(JOIN ARG_EXTRAS "," extras)
  execute_process(
    COMMAND
      "${CMAKE_COMMAND}" -E env PYTHONUNBUFFERED=1 "${Python3_EXECUTABLE}"
      "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/environment.py" ${command} --pyproject "${ARG_PYPROJECT}" --toolchain
      "${BUDDY_TOOLCHAIN}" --extras "${extras}"
    RESULT_VARIABLE result
    ERROR_VARIABLE errors
  )
  if(NOT result EQUAL 0)
    string(STRIP "${errors}" errors)
    message(FATAL_ERROR "${errors}")
  endif()
  set(python "${Python3_EXECUTABLE}")
  if(command MATCHES "^create")
    set(python "${ARG_VENV}/bin/python")
  endif()
  set(BUDDY_PYTHON "${python}" CACHE INTERNAL "interpreter that has buddy-gen's dependencies")
endfunction()

# Sets, in the caller, LLVM_ROOTS and MLIR_ROOTS: the folders whose bin/ and lib/cmake/ are searched.
function(_buddy_toolchain_roots)
  if(BUDDY_TOOLCHAIN STREQUAL "system")
    set(LLVM_ROOTS "${BUDDY_LLVM_ROOT}" PARENT_SCOPE)
    set(MLIR_ROOTS "${BUDDY_LLVM_ROOT}" PARENT_SCOPE)
    return()
  elseif(NOT BUDDY_TOOLCHAIN STREQUAL "wheels")
    message(FATAL_ERROR "BUDDY_TOOLCHAIN is '${BUDDY_TOOLCHAIN}'; it must be 'wheels' or 'system'.")
  endif()
  foreach(package IN ITEMS LLVM MLIR)
    string(TOLOWER "${package}" module)
    execute_process(
      COMMAND
        "${BUDDY_PYTHON}" -c
        "import importlib.util; s = importlib.util.find_spec('${module}'); print(*(s and s.submodule_search_locations or []), sep=';')"
      OUTPUT_VARIABLE roots
      OUTPUT_STRIP_TRAILING_WHITESPACE
      COMMAND_ERROR_IS_FATAL ANY
    )
    set(${package}_ROOTS "${roots}" PARENT_SCOPE)
  endforeach()
endfunction()

# What to do about a missing part of the toolchain.
function(_buddy_toolchain_advice result)
  if(BUDDY_TOOLCHAIN STREQUAL "wheels")
    set(advice "install the pinned wheels into ${BUDDY_PYTHON}'s environment, or use -DBUDDY_TOOLCHAIN=system")
  else()
    set(advice "install LLVM ${BUDDY_LLVM_VERSION} (Debian: llvm-22-dev libmlir-22-dev mlir-22-tools), name its ")
    string(APPEND advice "folder with -DBUDDY_LLVM_ROOT=DIR, or use -DBUDDY_TOOLCHAIN=wheels")
  endif()
  set(${result} "${advice}" PARENT_SCOPE)
endfunction()

# Finds one tool of the right version under the roots and puts its path into a variable of the caller.
function(_buddy_find_tool variable tool)
  list(TRANSFORM ARGN APPEND "/bin" OUTPUT_VARIABLE folders)
  find_program(path "${tool}" PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  _buddy_toolchain_advice(advice)
  if(NOT path)
    list(JOIN folders ", " folders)
    message(FATAL_ERROR "${tool} of LLVM ${BUDDY_LLVM_VERSION} was not found in '${folders}'; ${advice}.")
  endif()
  execute_process(COMMAND "${path}" --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  if(NOT version MATCHES "LLVM version ([0-9]+\\.[0-9]+)" OR NOT CMAKE_MATCH_1 STREQUAL BUDDY_LLVM_VERSION)
    message(FATAL_ERROR "${path} is not of LLVM ${BUDDY_LLVM_VERSION}; ${advice}.")
  endif()
  set(${variable} "${path}" CACHE INTERNAL "${tool}")
  set(version "${version}" PARENT_SCOPE)
endfunction()

# buddy_find_tools(): BUDDY_MLIR_TRANSLATE, BUDDY_LLVM_OPT, BUDDY_LLC, their folders BUDDY_MLIR_BIN and BUDDY_LLVM_BIN,
# and BUDDY_LLC_TARGETS, the architectures for which llc has a back end.
function(buddy_find_tools)
  buddy_option(BUDDY_LLVM_ROOT "/usr/lib/llvm-22" "The folder of the installed LLVM for BUDDY_TOOLCHAIN=system")
  _buddy_toolchain_roots()
  _buddy_find_tool(BUDDY_MLIR_TRANSLATE mlir-translate ${MLIR_ROOTS})
  _buddy_find_tool(BUDDY_LLVM_OPT opt ${LLVM_ROOTS})
  _buddy_find_tool(BUDDY_LLC llc ${LLVM_ROOTS})
  string(REGEX MATCHALL "\n +[a-z0-9_-]+ +- " lines "${version}")
  list(TRANSFORM lines REPLACE "[ \n]+([a-z0-9_-]+) +- " "\\1" OUTPUT_VARIABLE targets)
  set(BUDDY_LLC_TARGETS "${targets}" CACHE INTERNAL "architectures that llc knows")
  cmake_path(GET BUDDY_MLIR_TRANSLATE PARENT_PATH mlir_bin)
  cmake_path(GET BUDDY_LLC PARENT_PATH llvm_bin)
  set(BUDDY_MLIR_BIN "${mlir_bin}" CACHE INTERNAL "folder of MLIR's tools")
  set(BUDDY_LLVM_BIN "${llvm_bin}" CACHE INTERNAL "folder of LLVM's tools")
  message(STATUS "LLVM ${BUDDY_LLVM_VERSION} (${BUDDY_TOOLCHAIN}): ${llvm_bin}, ${mlir_bin}")
endfunction()

# buddy_find_mlir(): find_package(MLIR) from the same source, with TableGen's functions included. A macro, because the
# variables of MLIR's package are its interface.
macro(buddy_find_mlir)
  _buddy_toolchain_roots()
  set(LLVM_DIR LLVM_DIR-NOTFOUND)
  set(MLIR_DIR MLIR_DIR-NOTFOUND)
  find_path(LLVM_DIR LLVMConfig.cmake PATHS ${LLVM_ROOTS} PATH_SUFFIXES lib/cmake/llvm NO_DEFAULT_PATH NO_CACHE)
  find_path(MLIR_DIR MLIRConfig.cmake PATHS ${MLIR_ROOTS} PATH_SUFFIXES lib/cmake/mlir NO_DEFAULT_PATH NO_CACHE)
  if(NOT LLVM_DIR OR NOT MLIR_DIR)
    _buddy_toolchain_advice(advice)
    message(FATAL_ERROR "The CMake files of LLVM and MLIR ${BUDDY_LLVM_VERSION} were not found; ${advice}.")
  endif()
  find_package(MLIR REQUIRED CONFIG)
  if(NOT LLVM_PACKAGE_VERSION MATCHES "^${BUDDY_LLVM_VERSION}\\.")
    _buddy_toolchain_advice(advice)
    message(FATAL_ERROR "${LLVM_DIR} is of LLVM ${LLVM_PACKAGE_VERSION}, not ${BUDDY_LLVM_VERSION}; ${advice}.")
  endif()
  list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
  include(TableGen)
  include(AddLLVM)
  include(AddMLIR)
endmacro()
