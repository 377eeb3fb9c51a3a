# buddy-opt runs where the build runs: a cross build makes it in a native build of its own, under host/.
include_guard(GLOBAL)
include(ExternalProject)

set(BUDDY_OPT "${CMAKE_BINARY_DIR}/host/bin/buddy-opt")
ExternalProject_Add(
  buddy-host
  SOURCE_DIR "${PROJECT_SOURCE_DIR}"
  BINARY_DIR "${CMAKE_BINARY_DIR}/host"
  CMAKE_ARGS
    "-DCMAKE_BUILD_TYPE=Release" "-DPython3_EXECUTABLE=${BUDDY_PYTHON}" "-DBUDDY_TOOLCHAIN=${BUDDY_TOOLCHAIN}"
    "-DBUDDY_LLVM_ROOT=${BUDDY_LLVM_ROOT}" -DBUDDY_LLAMA=OFF -DBUDDY_TESTS=OFF
  BUILD_COMMAND "${CMAKE_COMMAND}" --build <BINARY_DIR> --target buddy-opt
  BUILD_ALWAYS ON
  BUILD_BYPRODUCTS "${BUDDY_OPT}"
  INSTALL_COMMAND ""
  USES_TERMINAL_CONFIGURE ON
  USES_TERMINAL_BUILD ON
)
