# buddy_add_model(): from a model to object files. The generator runs at configure time and writes STEM.mlir, the
# config header, the weights, the vocabulary and NAME.cmake; that fragment calls buddy_add_module() for each module
# that this model has and buddy_finish_model() once. The table of stages is in buddy_add_module() and nowhere else.
include_guard(GLOBAL)

include(BuddyChoices)
include(BuddyToolchain)

# BUDDY_PACKAGE_PATH: the folder that holds the package buddy_gen, when BUDDY_PYTHON does not find it by itself.
set(BUDDY_GENERATE "${CMAKE_COMMAND}" -E env PYTHONUNBUFFERED=1)
if(BUDDY_PACKAGE_PATH)
  list(APPEND BUDDY_GENERATE "BUDDY_BUILD_DIR=${CMAKE_BINARY_DIR}")
  list(APPEND BUDDY_GENERATE --modify "PYTHONPATH=path_list_prepend:${BUDDY_PACKAGE_PATH}")
endif()
list(APPEND BUDDY_GENERATE "${BUDDY_PYTHON}" -m buddy_gen.generate)

# buddy_add_model(<name> MODEL path [DTYPE f32] [GROUP 64] [KV_DTYPE f32] [CALIBRATION text [CALIBRATION_TOKENS 12288]]
#                 [TARGET native] [DIALECT_PRIORITY linalg tosa] [ENTRY_POINTS prefill decode] [RUNTIME_DIR dir])
#
# DTYPE: f32, f16, bf16, w8a32, w8a8, w4a32, w4a8 or gguf. GROUP: int8 weights that share a scale: 32, 64, 128, channel.
# KV_DTYPE: f32, f16, bf16 or i8; by default that of a float DTYPE, f16 otherwise. CALIBRATION: a text file
# that weights of 4 bits are rounded on (docs/quantization.md).
#
# Imports a model and makes the interface library buddy_model_<name>: its objects, the folder of <name>_config.h, and a
# dependency on <name>.weights.safetensors and <name>.vocab, which stand in RUNTIME_DIR (default:
# CMAKE_RUNTIME_OUTPUT_DIRECTORY). A model that changed, or a changed importer, is imported again by the next build.
function(buddy_add_model name)
  set(
    options
    DTYPE
    GROUP
    KV_DTYPE
    CALIBRATION
    CALIBRATION_TOKENS
    TARGET
    RUNTIME_DIR
    MODEL
  )
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "${options}" "DIALECT_PRIORITY;ENTRY_POINTS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_MODEL)
    message(
      FATAL_ERROR
      "buddy_add_model(${name} MODEL path ...): MODEL is missing, or '${ARG_UNPARSED_ARGUMENTS}' is unknown."
    )
  endif()
  foreach(option IN ITEMS DTYPE GROUP KV_DTYPE)
    buddy_check_choice("buddy_add_model(${name} ...): ${option}" "${ARG_${option}}" ${BUDDY_${option}S})
  endforeach()
  foreach(
    default
    IN
    ITEMS
      DTYPE=f32
      TARGET=native
      DIALECT_PRIORITY=linalg,tosa
      ENTRY_POINTS=prefill,decode
      "RUNTIME_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
  )
    string(REGEX MATCH "^([A-Z_]+)=(.*)$" default "${default}")
    if(NOT ARG_${CMAKE_MATCH_1})
      set(ARG_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
    endif()
  endforeach()
  if(NOT ARG_RUNTIME_DIR)
    set(ARG_RUNTIME_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  endif()
  if(NOT ARG_MODEL STREQUAL "smollm2" AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${ARG_MODEL}")
    cmake_path(ABSOLUTE_PATH ARG_MODEL NORMALIZE) # the generator also runs in the build folder
  endif()
  list(JOIN ARG_DIALECT_PRIORITY "," ARG_DIALECT_PRIORITY)
  list(JOIN ARG_ENTRY_POINTS "," ARG_ENTRY_POINTS)
  set(precision --dtype "${ARG_DTYPE}")
  if(ARG_GROUP)
    list(APPEND precision --group "${ARG_GROUP}")
  endif()
  if(ARG_KV_DTYPE)
    list(APPEND precision --kv-dtype "${ARG_KV_DTYPE}")
  endif()
  if(ARG_CALIBRATION)
    cmake_path(ABSOLUTE_PATH ARG_CALIBRATION NORMALIZE)
    list(APPEND precision --calibrate "${ARG_CALIBRATION}")
  endif()
  if(ARG_CALIBRATION_TOKENS)
    list(APPEND precision --calibration-tokens "${ARG_CALIBRATION_TOKENS}")
  endif()
  set(output_dir "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  execute_process(
    COMMAND
      ${BUDDY_GENERATE} --name "${name}" --model "${ARG_MODEL}" --output-dir "${output_dir}" --runtime-dir
      "${ARG_RUNTIME_DIR}" --target "${ARG_TARGET}" ${precision} --dialect-priority "${ARG_DIALECT_PRIORITY}"
      --entry-points "${ARG_ENTRY_POINTS}"
    RESULT_VARIABLE result
    ERROR_VARIABLE errors
  )
  string(STRIP "${errors}" errors)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${errors}")
  elseif(errors)
    message(STATUS "${errors}")
  endif()
  include("${output_dir}/${name}.cmake")
endfunction()

# One stage: TOOL ARGUMENTS INPUT -o OUTPUT, through BuddyStage.cmake.
set(BUDDY_STAGE_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/BuddyStage.cmake")
function(_buddy_add_stage)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "INPUT;OUTPUT;TOOL;COMMENT" "ARGUMENTS")
  set(tool "${ARG_TOOL}")
  if(TARGET "${tool}")
    set(tool "$<TARGET_FILE:${tool}>")
  endif()
  add_custom_command(
    OUTPUT "${ARG_OUTPUT}"
    COMMAND
      "${CMAKE_COMMAND}" "-DOUTPUT=${ARG_OUTPUT}" -P "${BUDDY_STAGE_SCRIPT}" -- "${tool}" ${ARG_ARGUMENTS}
      "${ARG_INPUT}"
    DEPENDS "${ARG_INPUT}" "${ARG_TOOL}"
    COMMENT "${ARG_COMMENT}"
    VERBATIM
  )
endfunction()

# buddy_add_module(<name> STEM stem DIRECTORY dir TRIPLE triple [CPU cpu] [FEATURES features])
#
# The stages from STEM.mlir to STEM.o. They run in this order, and the suffix names the stage.
function(buddy_add_module name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "STEM;DIRECTORY;TRIPLE;CPU;FEATURES" "")
  string(REGEX MATCH "^[^-]+" architecture "${ARG_TRIPLE}")
  string(REPLACE "x86_64" "x86-64" architecture "${architecture}")
  if(NOT architecture IN_LIST BUDDY_LLC_TARGETS)
    message(
      FATAL_ERROR
      "${BUDDY_LLC} has no back end for ${ARG_TRIPLE}; use -DBUDDY_TOOLCHAIN=system with an LLVM that has it."
    )
  endif()
  set(machine "-mtriple=${ARG_TRIPLE}")
  if(ARG_CPU)
    list(APPEND machine "-mcpu=${ARG_CPU}")
  endif()
  if(ARG_FEATURES)
    list(APPEND machine "-mattr=${ARG_FEATURES}")
  endif()
  set(code -filetype=obj -relocation-model=pic)
  if(architecture STREQUAL "riscv64")
    list(APPEND code -target-abi=lp64d)
  endif()

  set(base "${ARG_DIRECTORY}/${ARG_STEM}")
  # gersemi: off
  _buddy_add_stage(INPUT "${base}.mlir" OUTPUT "${base}.llvm.mlir" TOOL "${BUDDY_OPT}"
                   ARGUMENTS --buddy-lower-to-llvm COMMENT "Lowering ${ARG_STEM} (buddy-opt)")
  _buddy_add_stage(INPUT "${base}.llvm.mlir" OUTPUT "${base}.ll" TOOL "${BUDDY_MLIR_TRANSLATE}"
                   ARGUMENTS --mlir-to-llvmir COMMENT "Translating ${ARG_STEM} to LLVM IR (mlir-translate)")
  _buddy_add_stage(INPUT "${base}.ll" OUTPUT "${base}.opt.bc" TOOL "${BUDDY_LLVM_OPT}"
                   ARGUMENTS -O3 ${machine} COMMENT "Optimising ${ARG_STEM} (opt)")
  _buddy_add_stage(INPUT "${base}.opt.bc" OUTPUT "${base}.o" TOOL "${BUDDY_LLC}"
                   ARGUMENTS -O3 ${machine} ${code} COMMENT "Compiling ${ARG_STEM} (llc)")
  # gersemi: on
endfunction()

# buddy_finish_model(<name> DIRECTORY dir RUNTIME_DIR dir MODULES stem... WEIGHTS file [VOCAB file] DEPENDS file...
#                    COMMAND generator-argument...)
function(buddy_finish_model name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "DIRECTORY;WEIGHTS;VOCAB" "MODULES;DEPENDS;COMMAND")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARG_DEPENDS})

  # The generator has just run. What it wrote is made anew by the same command when somebody deletes it.
  set(generated "${ARG_WEIGHTS}" ${ARG_VOCAB} "${ARG_DIRECTORY}/${name}_config.h")
  list(TRANSFORM ARG_MODULES PREPEND "${ARG_DIRECTORY}/" OUTPUT_VARIABLE bases)
  list(TRANSFORM bases APPEND ".mlir" OUTPUT_VARIABLE modules)
  list(TRANSFORM bases APPEND ".o" OUTPUT_VARIABLE objects)
  add_custom_command(
    OUTPUT ${generated} ${modules}
    COMMAND ${BUDDY_GENERATE} ${ARG_COMMAND}
    COMMENT "Checking what was generated for ${name}"
    USES_TERMINAL
    VERBATIM
  )

  add_custom_target(buddy_model_${name}_files DEPENDS ${generated} ${objects})
  add_library(buddy_model_${name} INTERFACE)
  add_dependencies(buddy_model_${name} buddy_model_${name}_files)
  target_include_directories(buddy_model_${name} INTERFACE "${ARG_DIRECTORY}")
  target_link_libraries(buddy_model_${name} INTERFACE ${objects})
  set_target_properties(buddy_model_${name} PROPERTIES BUDDY_WEIGHTS "${ARG_WEIGHTS}" BUDDY_VOCAB "${ARG_VOCAB}")
endfunction()
