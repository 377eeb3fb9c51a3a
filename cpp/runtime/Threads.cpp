//===- Threads.cpp - How many threads generated code uses -----------------===//

#include "buddy/Threads.h"

#include <algorithm>
#include <atomic>

#include <sched.h>
#include <unistd.h>

#include "CpuQuota.h"

using namespace buddy;

/// 0 until setThreadCount is called.
static std::atomic<int> chosenCount{0};

/// The CPUs of the affinity mask; where there is none, those that are online.
static int affineCpuCount() {
#ifdef __linux__
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t *set = CPU_ALLOC(cpus);
    if (!set)
      break;
    const std::size_t size = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, size, set) == 0;
    const int count = known ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (known)
      return count;
  }
#endif
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

int buddy::allowedCpuCount() noexcept {
  const int affine = std::max(affineCpuCount(), 1);
  const int limit = cgroupCpuLimit("/proc/self/cgroup", "/sys/fs/cgroup");
  return limit ? std::min(affine, limit) : affine;
}

void buddy::setThreadCount(int count) noexcept {
  chosenCount.store(std::clamp(count, 1, maxThreadCount), std::memory_order_relaxed);
}

int buddy::threadCount() noexcept {
  int count = chosenCount.load(std::memory_order_relaxed);
  if (count == 0) {
    count = std::min(allowedCpuCount(), maxThreadCount);
    int none = 0;
    if (!chosenCount.compare_exchange_strong(none, count, std::memory_order_relaxed))
      count = none;
  }
  return count;
}
