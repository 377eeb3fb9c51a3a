# buddy_add_llama_app(): a program that runs one LLaMA model.
include_guard(GLOBAL)

get_filename_component(BUDDY_LLAMA_APP_DIR "${CMAKE_CURRENT_LIST_DIR}/../cpp/apps/llama" ABSOLUTE)

# What knows the model's config header is compiled for each model; all else once.
set(BUDDY_LLAMA_MODEL_SOURCES Main.cpp Options.cpp Report.cpp Session.cpp)

# buddy_add_llama_app(<target> MODEL <name>)
#
# <name> is a model made by buddy_add_model(<name> ...): the interface library buddy_model_<name> with its objects and
# the folder of <name>_config.h. The program finds the model's files in its own folder. It is compiled for the
# baseline of its architecture, so that it can say so when a CPU lacks what the generated code needs.
function(buddy_add_llama_app target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "MODEL" "")
  if(NOT ARG_MODEL OR ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "buddy_add_llama_app(${target} MODEL name): MODEL is missing, or too much is given.")
  endif()
  if(NOT TARGET buddy_model_${ARG_MODEL})
    message(
      FATAL_ERROR
      "buddy_add_llama_app(${target} MODEL ${ARG_MODEL}): there is no such model; call buddy_add_model(${ARG_MODEL} ...) first."
    )
  endif()
  _buddy_add_llama_app_library()
  list(TRANSFORM BUDDY_LLAMA_MODEL_SOURCES PREPEND "${BUDDY_LLAMA_APP_DIR}/" OUTPUT_VARIABLE sources)
  add_executable(${target} ${sources})
  target_compile_definitions(
    ${target}
    PRIVATE BUDDY_MODEL=${ARG_MODEL} BUDDY_MODEL_CONFIG_HEADER="${ARG_MODEL}_config.h"
  )
  target_link_libraries(${target} PRIVATE buddy_llama_app buddy_model_${ARG_MODEL} buddy::runtime m)
  # The folder runs as it is, on machines with another compiler's libraries or none.
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()

# buddy_llama_app: the part of the program that is the same for every model.
function(_buddy_add_llama_app_library)
  if(TARGET buddy_llama_app)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${BUDDY_LLAMA_APP_DIR}/*.cpp")
  foreach(source IN LISTS BUDDY_LLAMA_MODEL_SOURCES)
    list(REMOVE_ITEM sources "${BUDDY_LLAMA_APP_DIR}/${source}")
  endforeach()
  add_library(buddy_llama_app STATIC ${sources})
  target_link_libraries(buddy_llama_app PUBLIC buddy::containers)
endfunction()
