//===- Profile.cpp - Time that regions of generated code take -------------===//

#include "buddy/Profile.h"

#include <atomic>
#include <chrono>
#include <cstddef>

using namespace buddy;
using Clock = std::chrono::steady_clock;

namespace {

struct Region {
  std::int64_t calls = 0;
  Clock::duration total{};
  Clock::time_point begin;
};

struct Module {
  const void *address;
  std::vector<Region> regions; // the whole call first, then number 0, 1, ...
};

} // namespace

static std::atomic<bool> measuring{false};
static std::vector<Module> modules; // a handful

static Module *find(const void *address) {
  for (Module &module : modules)
    if (module.address == address)
      return &module;
  return nullptr;
}

static Region &regionOf(const void *address, std::int64_t number) {
  Module *module = find(address);
  if (!module)
    module = &modules.emplace_back(Module{address, {}});
  const auto index = static_cast<std::size_t>(number - wholeCallRegion);
  if (index >= module->regions.size())
    module->regions.resize(index + 1);
  return module->regions[index];
}

void buddy_profile_begin(const void *module, std::int64_t region) {
  if (measuring.load(std::memory_order_relaxed))
    regionOf(module, region).begin = Clock::now();
}

void buddy_profile_end(const void *module, std::int64_t region) {
  if (!measuring.load(std::memory_order_relaxed))
    return;
  const Clock::time_point now = Clock::now();
  Region &ended = regionOf(module, region);
  ended.total += now - ended.begin;
  ++ended.calls;
}

void buddy::setProfiling(bool on) noexcept { measuring.store(on, std::memory_order_relaxed); }

void buddy::clearProfile() noexcept { modules.clear(); }

std::vector<RegionTime> buddy::profileOf(const void *module) {
  std::vector<RegionTime> times;
  const Module *found = find(module);
  for (std::size_t i = 0; found && i < found->regions.size(); ++i) {
    const Region &region = found->regions[i];
    if (region.calls > 0)
      times.push_back({static_cast<std::int64_t>(i) + wholeCallRegion, region.calls,
                       std::chrono::duration<double>(region.total).count()});
  }
  return times;
}
