# What a model's build may be asked for, as python/buddy_gen/choices.py has it, and the check of it.
include_guard(GLOBAL)

set(
  BUDDY_DTYPES
  f32
  f16
  bf16
  w8a32
  w8a8
  w4a32
  w4a8
  gguf
)
set(BUDDY_GROUPS 32 64 128 channel)
set(BUDDY_KV_DTYPES f32 f16 bf16 i8)

# buddy_check_choice(<what> <value> <choice>...): ends with a sentence when the value is none of the choices. An empty
# value is a default.
function(buddy_check_choice what value)
  if(NOT value STREQUAL "" AND NOT value IN_LIST ARGN)
    list(JOIN ARGN ", " choices)
    message(FATAL_ERROR "${what} is '${value}'; choose from ${choices}.")
  endif()
endfunction()
