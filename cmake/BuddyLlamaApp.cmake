# buddy_add_llama_app(): a program that runs one LLaMA model.
include_guard(GLOBAL)

get_filename_component(BUDDY_LLAMA_APP_DIR "${CMAKE_CURRENT_LIST_DIR}/../cpp/apps/llama" ABSOLUTE)

# The engine and the program: what knows the model's config header is compiled for each model, all else once.
set(BUDDY_LLAMA_ENGINE_SOURCES Session.cpp)
set(BUDDY_LLAMA_PROGRAM_SOURCES Main.cpp Options.cpp Report.cpp)
# What only a library has, beside the engine.
set(BUDDY_LLAMA_LIBRARY_SOURCES Library.cpp)

# buddy_add_llama_app(<target> MODEL <name>)
#
# <name> is a model made by buddy_add_model(<name> ...): the interface library buddy_model_<name> with its objects and
# the folder of <name>_config.h. The program finds the model's files in its own folder. It is compiled for the
# baseline of its architecture, so that it can say so when a CPU lacks what the generated code needs.
function(buddy_add_llama_app target)
  _buddy_llama_model(buddy_add_llama_app ${ARGV})
  list(TRANSFORM BUDDY_LLAMA_PROGRAM_SOURCES PREPEND "${BUDDY_LLAMA_APP_DIR}/" OUTPUT_VARIABLE sources)
  add_executable(${target} ${sources})
  _buddy_add_llama_engine(${target} ${model})
endfunction()

# Checks the arguments <target> MODEL <name> of `function`, and gives the name to its caller as `model`.
function(_buddy_llama_model function target)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "" "MODEL" "")
  if(NOT ARG_MODEL OR ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${function}(${target} MODEL name): MODEL is missing, or too much is given.")
  endif()
  if(NOT TARGET buddy_model_${ARG_MODEL})
    message(
      FATAL_ERROR
      "${function}(${target} MODEL ${ARG_MODEL}): there is no such model; call buddy_add_model(${ARG_MODEL} ...) first."
    )
  endif()
  set(model "${ARG_MODEL}" PARENT_SCOPE)
endfunction()

# Adds to a program or library all that runs the model, which it knows by its config header.
function(_buddy_add_llama_engine target model)
  _buddy_add_llama_app_library()
  list(TRANSFORM BUDDY_LLAMA_ENGINE_SOURCES PREPEND "${BUDDY_LLAMA_APP_DIR}/" OUTPUT_VARIABLE sources)
  target_sources(${target} PRIVATE ${sources})
  target_compile_definitions(${target} PRIVATE BUDDY_MODEL=${model} BUDDY_MODEL_CONFIG_HEADER="${model}_config.h")
  target_link_libraries(${target} PRIVATE buddy_llama_app buddy_model_${model} buddy::runtime m)
  # The folder runs as it is, on machines with another compiler's libraries or none.
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()

# buddy_llama_app: the part of programs and libraries that is the same for every model.
function(_buddy_add_llama_app_library)
  if(TARGET buddy_llama_app)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${BUDDY_LLAMA_APP_DIR}/*.cpp")
  foreach(source IN LISTS BUDDY_LLAMA_ENGINE_SOURCES BUDDY_LLAMA_PROGRAM_SOURCES BUDDY_LLAMA_LIBRARY_SOURCES)
    list(REMOVE_ITEM sources "${BUDDY_LLAMA_APP_DIR}/${source}")
  endforeach()
  add_library(buddy_llama_app STATIC ${sources})
  target_link_libraries(buddy_llama_app PUBLIC buddy::containers buddy::runtime)
  set_target_properties(buddy_llama_app PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # Fused operations would give the sampler other bits on other machines; set here, where the folder is compiled.
  target_compile_options(buddy_llama_app PRIVATE -ffp-contract=off)
endfunction()

# buddy_add_llama_library(<target> MODEL <name>)
#
# lib<name>.so: the same model behind the C interface of cpp/apps/llama/Library.h, for other languages. It is linked
# beside the programs, and whoever opens it names the folder with the model's files. It shows nothing but that
# interface: its run time must not meet another OpenMP of the process.
function(buddy_add_llama_library target)
  _buddy_llama_model(buddy_add_llama_library ${ARGV})
  list(TRANSFORM BUDDY_LLAMA_LIBRARY_SOURCES PREPEND "${BUDDY_LLAMA_APP_DIR}/" OUTPUT_VARIABLE sources)
  add_library(${target} SHARED ${sources})
  _buddy_add_llama_engine(${target} ${model})
  set(exports "${BUDDY_LLAMA_APP_DIR}/Library.map")
  set_target_properties(
    ${target}
    PROPERTIES
      OUTPUT_NAME ${model}
      NO_SONAME ON
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      LINK_DEPENDS "${exports}"
  )
  if(CMAKE_RUNTIME_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  endif()
  target_link_options(
    ${target}
    PRIVATE "LINKER:--version-script=${exports}" "$<$<NOT:$<BOOL:${BUDDY_SANITIZE}>>:LINKER:-z,defs>"
  )
endfunction()
