//===- Placement.h - Which CPU each worker runs on ------------------------===//
//
// Schedulers like to wake a thread on the CPU of the thread that wakes it. Two threads of a team then share a core for
// seconds, at half the speed, while another core idles. Where a team has exactly as many threads as there are CPUs,
// each worker is therefore bound to a CPU of its own. The thread that starts regions belongs to the program and is
// never bound: the workers make room for it.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_RUNTIME_PLACEMENT_H
#define BUDDY_RUNTIME_PLACEMENT_H

#include <vector>

#include <pthread.h>

namespace buddy::runtime {

class Placement {
public:
  Placement();

  /// The CPUs that the process may use, at most its quota.
  int cpuCount() const noexcept { return cpus; }

  /// Called by the thread that starts a region on a team of `teamSize`, itself and the first workers.
  void arrange(const std::vector<pthread_t> &workers, int teamSize);

private:
  void bindAll(const std::vector<pthread_t> &workers, int caller);
  void releaseAll(const std::vector<pthread_t> &workers);

  int cpus;
  std::vector<int> numbers;   // of the CPUs in the affinity mask
  std::vector<int> workerCpu; // of each bound worker; empty while none is bound
  int callerCpu = -1;
};

} // namespace buddy::runtime

#endif // BUDDY_RUNTIME_PLACEMENT_H
