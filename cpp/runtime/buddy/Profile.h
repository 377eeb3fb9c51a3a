//===- Profile.h - Time that regions of generated code take ---------------===//
//
// Generated code that was compiled with profiling tells where its regions begin and end; a module's address is that of
// its table of names, <entry>_profile_names: a line for each region, from number 0 on. Nothing is measured until the
// program asks for it; until then a call costs one load and a branch.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_PROFILE_H
#define BUDDY_PROFILE_H

#include <cstdint>
#include <vector>

extern "C" {
/// Region `region` of a module begins or ends. Calls come from one thread at a time; a region does not contain itself.
void buddy_profile_begin(const void *module, std::int64_t region);
void buddy_profile_end(const void *module, std::int64_t region);
}

namespace buddy {

/// The number under which a program may count whole calls of a module's entry point.
inline constexpr std::int64_t wholeCallRegion = -1;

/// What was measured of one region.
struct RegionTime {
  std::int64_t region, calls;
  double seconds;
};

/// Begins to measure, or stops.
void setProfiling(bool on) noexcept;

/// The regions of a module that were entered since the start or the last clearProfile, by their numbers.
std::vector<RegionTime> profileOf(const void *module);

/// Forgets all times.
void clearProfile() noexcept;

} // namespace buddy

#endif // BUDDY_PROFILE_H
