//===- Placement.cpp - Which CPU each worker runs on ----------------------===//

#include "Placement.h"

#include <algorithm>

#include <sched.h>

#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::runtime;

#ifdef __linux__

// One cpu_set_t is enough for 1,024 CPUs; machines with more are not bound.
Placement::Placement() : cpus(allowedCpuCount()) {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0)
    return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask))
      numbers.push_back(cpu);
}

static void bind(pthread_t thread, const int *first, const int *last) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (; first != last; ++first)
    CPU_SET(*first, &mask);
  pthread_setaffinity_np(thread, sizeof mask, &mask); // refused: the thread stays where the scheduler puts it
}

void Placement::arrange(const std::vector<pthread_t> &workers, int teamSize) {
  if (teamSize != cpus || numbers.size() != static_cast<std::size_t>(cpus))
    return releaseAll(workers);
  const int caller = sched_getcpu();
  if (caller == callerCpu)
    return;
  if (std::find(numbers.begin(), numbers.end(), caller) == numbers.end())
    return releaseAll(workers);
  if (workerCpu.empty())
    bindAll(workers, caller);
  else {
    // The caller has moved to a worker's CPU: they change places.
    const auto place = std::find(workerCpu.begin(), workerCpu.end(), caller);
    *place = callerCpu;
    bind(workers[static_cast<std::size_t>(place - workerCpu.begin())], &callerCpu, &callerCpu + 1);
  }
  callerCpu = caller;
}

void Placement::bindAll(const std::vector<pthread_t> &workers, int caller) {
  for (int cpu : numbers)
    if (cpu != caller)
      workerCpu.push_back(cpu);
  for (std::size_t i = 0; i < workerCpu.size(); ++i)
    bind(workers[i], &workerCpu[i], &workerCpu[i] + 1);
}

void Placement::releaseAll(const std::vector<pthread_t> &workers) {
  for (std::size_t i = 0; i < workerCpu.size(); ++i)
    bind(workers[i], numbers.data(), numbers.data() + numbers.size());
  workerCpu.clear();
  callerCpu = -1;
}

#else

Placement::Placement() : cpus(allowedCpuCount()) {}
void Placement::arrange(const std::vector<pthread_t> &, int) {}
void Placement::bindAll(const std::vector<pthread_t> &, int) {}
void Placement::releaseAll(const std::vector<pthread_t> &) {}

#endif
