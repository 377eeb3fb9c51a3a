# Runs one stage of a model's build: cmake -DOUTPUT=FILE -P BuddyStage.cmake -- TOOL ARGUMENT...
#
# OUTPUT is written beside and renamed, so that a build that was killed leaves no half-written file that looks finished.
# The name beside is one that no other process uses: a tool may outlive the build that started it.
set(command "")
set(separator FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(index RANGE ${last})
  if(separator)
    list(APPEND command "${CMAKE_ARGV${index}}")
  elseif(CMAKE_ARGV${index} STREQUAL "--")
    set(separator TRUE)
  endif()
endforeach()

string(RANDOM LENGTH 8 name)
set(beside "${OUTPUT}.${name}.tmp")
execute_process(COMMAND ${command} -o "${beside}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  file(REMOVE "${beside}")
  list(GET command 0 tool)
  message(FATAL_ERROR "${tool} failed (${result}).")
endif()
file(RENAME "${beside}" "${OUTPUT}")
