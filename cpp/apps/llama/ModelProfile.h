//===- ModelProfile.h - The names of a model's profiled regions -----------===//

#ifndef BUDDY_APPS_LLAMA_MODELPROFILE_H
#define BUDDY_APPS_LLAMA_MODELPROFILE_H

#include "ModelConfig.h"

#define BUDDY_PROFILE_JOIN(name, end) name##end
#define BUDDY_PROFILE_NAMES(name, entry) BUDDY_PROFILE_JOIN(name, entry##_profile_names)

// A line for each region of a module; missing, with an address of null, where it was compiled without profiling.
extern "C" {
[[gnu::weak]] extern const char BUDDY_PROFILE_NAMES(BUDDY_MODEL, _prefill)[];
[[gnu::weak]] extern const char BUDDY_PROFILE_NAMES(BUDDY_MODEL, _decode)[];
[[gnu::weak]] extern const char BUDDY_PROFILE_NAMES(BUDDY_MODEL, _score)[];
}

namespace buddy::llama {

inline const char *prefillProfileNames() noexcept { return BUDDY_PROFILE_NAMES(BUDDY_MODEL, _prefill); }
inline const char *decodeProfileNames() noexcept { return BUDDY_PROFILE_NAMES(BUDDY_MODEL, _decode); }
inline const char *scoreProfileNames() noexcept { return BUDDY_PROFILE_NAMES(BUDDY_MODEL, _score); }

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_MODELPROFILE_H
