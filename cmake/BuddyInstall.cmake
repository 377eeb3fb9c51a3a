# What `pip install .` and `cmake --install` put beside the Python package: buddy_gen/bin/buddy-opt, and under
# buddy_gen/share/buddy the CMake and C++ sources that building a model needs when this clone is gone.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

set(share buddy_gen/share/buddy)

# Beside the wheels' libraries in site-packages; anywhere else, where the libraries are now.
set(library_dirs "\$ORIGIN/../../mlir/lib" "\$ORIGIN/../../llvm/lib")
if(NOT SKBUILD)
  cmake_path(SET mlir_library_dir NORMALIZE "${MLIR_DIR}/../..")
  cmake_path(SET llvm_library_dir NORMALIZE "${LLVM_DIR}/../..")
  list(APPEND library_dirs "${mlir_library_dir}" "${llvm_library_dir}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/python/buddy_gen" DESTINATION . PATTERN __pycache__ EXCLUDE)
endif()
set_target_properties(buddy-opt PROPERTIES INSTALL_RPATH "${library_dirs}")

configure_file("${PROJECT_SOURCE_DIR}/cmake/BuddyConfig.cmake.in" "${CMAKE_BINARY_DIR}/BuddyConfig.cmake" @ONLY)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/BuddyConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(
  FILES
    "${CMAKE_BINARY_DIR}/BuddyConfig.cmake"
    "${CMAKE_BINARY_DIR}/BuddyConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/BuddyChoices.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/BuddyToolchain.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/BuddyModel.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/BuddyStage.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/BuddyLlamaApp.cmake"
  DESTINATION ${share}/cmake
)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/cpp" DESTINATION ${share})
install(FILES "${PROJECT_SOURCE_DIR}/benchmarks/machine-limits.cpp" DESTINATION ${share}/benchmarks)
