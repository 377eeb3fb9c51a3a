//===- Threads.h - How many threads generated code uses -------------------===//

#ifndef BUDDY_THREADS_H
#define BUDDY_THREADS_H

namespace buddy {

/// The most threads that setThreadCount takes.
inline constexpr int maxThreadCount = 1024;

/// Sets the number of threads (the caller's included) of the parallel regions that start from now on; values are
/// clamped to 1 ... maxThreadCount. Threads are made when a region first needs them.
void setThreadCount(int count) noexcept;

/// What setThreadCount set; allowedCpuCount() before that.
int threadCount() noexcept;

/// The CPUs that this process may use: those of its affinity mask, limited by the CPU quota of its cgroups (version 1
/// or 2; rounded up). At least 1.
int allowedCpuCount() noexcept;

} // namespace buddy

#endif // BUDDY_THREADS_H
