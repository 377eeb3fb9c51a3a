//===- runtime_test.cpp - The OpenMP entry points against serial loops ----===//

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "Check.h"
#include "buddy/Threads.h"

using Task = void (*)(std::int32_t *, std::int32_t *, ...);

extern "C" {
void __kmpc_fork_call(void *, std::int32_t, Task, ...);
void __kmpc_fork_call_if(void *, std::int32_t, Task, std::int32_t, void *);
void __kmpc_push_num_threads(void *, std::int32_t, std::int32_t);
void __kmpc_serialized_parallel(void *, std::int32_t);
void __kmpc_end_serialized_parallel(void *, std::int32_t);
void __kmpc_barrier(void *, std::int32_t);
#define LOOP(SUFFIX, T, STEP)                                                                                          \
  void __kmpc_for_static_init_##SUFFIX(void *, std::int32_t, std::int32_t, std::int32_t *, T *, T *, STEP *, STEP,     \
                                       STEP);                                                                          \
  void __kmpc_dispatch_init_##SUFFIX(void *, std::int32_t, std::int32_t, T, T, STEP, STEP);                            \
  std::int32_t __kmpc_dispatch_next_##SUFFIX(void *, std::int32_t, std::int32_t *, T *, T *, STEP *);                  \
  void __kmpc_dispatch_fini_##SUFFIX(void *, std::int32_t);
LOOP(4, std::int32_t, std::int32_t)
LOOP(4u, std::uint32_t, std::int32_t)
LOOP(8, std::int64_t, std::int64_t)
LOOP(8u, std::uint64_t, std::int64_t)
void __kmpc_for_static_fini(void *, std::int32_t);
std::int32_t __kmpc_reduce(void *, std::int32_t, std::int32_t, std::size_t, void *, void (*)(void *, void *), void *);
void __kmpc_end_reduce(void *, std::int32_t, void *);
void __kmpc_critical(void *, std::int32_t, void *);
void __kmpc_end_critical(void *, std::int32_t, void *);
std::int32_t __kmpc_master(void *, std::int32_t);
std::int32_t __kmpc_single(void *, std::int32_t);
void __kmpc_end_single(void *, std::int32_t);
int omp_get_thread_num();
int omp_get_num_threads();
int omp_get_max_threads();
}

/// Runs `body` (a callable without arguments) on a team, as generated code does: a function and one pointer.
template <typename Body> static void parallel(Body &body) {
  void (*task)(std::int32_t *, std::int32_t *, void *) = [](std::int32_t *, std::int32_t *, void *pointer) {
    (*static_cast<Body *>(pointer))();
  };
  __kmpc_fork_call(nullptr, 1, reinterpret_cast<Task>(task), &body);
}

constexpr std::int32_t chunked = 33, balanced = 34, dynamic = 35, guided = 36;
constexpr std::int32_t monotonic = 1 << 29;

/// Every iteration is run exactly once, and exactly one thread has the last one.
static void checkStaticLoops() {
  for (int threads : {1, 2, 3, 7})
    for (std::int64_t trips : {0, 1, 2, 3, 6, 7, 8, 100, 1001})
      for (std::int64_t chunk : {0, 1, 3, 50}) {
        buddy::setThreadCount(threads);
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(trips));
        std::atomic<int> lasts{0}, members{0};
        auto body = [&] {
          ++members;
          std::int32_t last = 0;
          std::uint64_t lower = 0, upper = static_cast<std::uint64_t>(trips) - 1; // wraps for 0, as MLIR's code does
          std::int64_t stride = 1;
          __kmpc_for_static_init_8u(nullptr, 0, (chunk ? chunked : balanced) | monotonic, &last, &lower, &upper,
                                    &stride, 1, chunk);
          lasts += last != 0;
          if (!chunk) {
            for (std::uint64_t i = 0, count = upper - lower + 1; i < count; ++i)
              ++hits[lower + i];
          } else if (trips) {
            for (; lower < std::uint64_t(trips);
                 lower += static_cast<std::uint64_t>(stride), upper += static_cast<std::uint64_t>(stride))
              for (std::uint64_t i = lower; i <= upper && i < std::uint64_t(trips); ++i)
                ++hits[i];
          }
          __kmpc_for_static_fini(nullptr, 0);
        };
        parallel(body);
        CHECK(members == threads);
        CHECK(lasts == (trips ? 1 : 0));
        for (auto &hit : hits)
          CHECK(hit == 1);
      }
}

/// Downward and signed loops with a step.
static void checkSteps() {
  for (int threads : {1, 2, 5})
    for (std::int32_t step : {1, 3, -1, -4}) {
      buddy::setThreadCount(threads);
      std::atomic<int> sum{0};
      const std::int32_t first = step > 0 ? -20 : 21, end = step > 0 ? 21 : -20;
      auto body = [&] {
        std::int32_t last = 0, lower = first, upper = end, stride = 0;
        __kmpc_for_static_init_4(nullptr, 0, balanced, &last, &lower, &upper, &stride, step, 0);
        for (std::int32_t i = lower; step > 0 ? i <= upper : i >= upper; i += step)
          sum += i * i + 1;
      };
      parallel(body);
      int expected = 0;
      for (std::int32_t i = first; step > 0 ? i <= end : i >= end; i += step)
        expected += i * i + 1;
      CHECK(sum == expected);
    }
}

/// Two dozen dynamic loops one after the other, without barriers between them.
static void checkDynamicLoops() {
  for (int threads : {1, 2, 4})
    for (std::int32_t schedule : {dynamic, guided}) {
      buddy::setThreadCount(threads);
      constexpr int loops = 24, trips = 131;
      std::vector<std::atomic<int>> hits(loops * trips);
      auto body = [&] {
        for (int loop = 0; loop < loops; ++loop) {
          __kmpc_dispatch_init_8(nullptr, 0, schedule, 0, trips - 1, 1, 1 + loop % 5);
          std::int32_t last;
          std::int64_t lower, upper, stride;
          while (__kmpc_dispatch_next_8(nullptr, 0, &last, &lower, &upper, &stride))
            for (std::int64_t i = lower; i <= upper; ++i)
              ++hits[static_cast<std::size_t>(loop * trips + i)];
        }
      };
      parallel(body);
      for (auto &hit : hits)
        CHECK(hit == 1);
    }
}

static void checkArguments() {
  buddy::setThreadCount(2);
  std::atomic<int> sum{0};
  int values[15];
  std::iota(values, values + 15, 1);
  using P = int *;
  void (*task)(std::int32_t *, std::int32_t *, std::atomic<int> *, P, P, P, P, P, P, P, P, P, P, P, P, P,
               P) = [](std::int32_t *, std::int32_t *, std::atomic<int> *total, P a, P b, P c, P d, P e, P f, P g, P h,
                       P i, P j, P k, P l, P m, P n) {
    *total += *a + *b * 2 + *c * 3 + *d * 4 + *e * 5 + *f * 6 + *g * 7 + *h + *i + *j + *k + *l + *m + *n;
  };
  int *v = values;
  __kmpc_fork_call(nullptr, 15, reinterpret_cast<Task>(task), &sum, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7,
                   v + 8, v + 9, v + 10, v + 11, v + 12, v + 13);
  CHECK(sum == 2 * (1 + 4 + 9 + 16 + 25 + 36 + 49 + 8 + 9 + 10 + 11 + 12 + 13 + 14));

  std::atomic<int> none{0};
  static std::atomic<int> *counter = &none;
  void (*empty)(std::int32_t *, std::int32_t *) = [](std::int32_t *, std::int32_t *) { ++*counter; };
  __kmpc_fork_call(nullptr, 0, reinterpret_cast<Task>(empty));
  CHECK(none == 2);
  __kmpc_fork_call_if(nullptr, 0, reinterpret_cast<Task>(empty), 0, nullptr);
  CHECK(none == 3);
  __kmpc_fork_call_if(nullptr, 0, reinterpret_cast<Task>(empty), 1, nullptr);
  CHECK(none == 5);
}

/// Barriers separate phases; nested regions are run by their thread alone; a request for threads holds once.
static void checkRegions() {
  for (int threads : {1, 2, 5}) {
    buddy::setThreadCount(threads);
    CHECK(omp_get_max_threads() == threads);
    std::atomic<int> phase[3] = {{0}, {0}, {0}};
    std::atomic<int> inner{0}, masters{0}, singles{0};
    auto nested = [&] {
      CHECK(omp_get_num_threads() == 1 && omp_get_thread_num() == 0);
      ++inner;
      __kmpc_barrier(nullptr, 0);
    };
    auto body = [&] {
      CHECK(omp_get_num_threads() == threads);
      const int number = omp_get_thread_num();
      CHECK(number >= 0 && number < threads);
      for (auto &count : phase) {
        ++count;
        __kmpc_barrier(nullptr, 0);
        CHECK(count == threads);
      }
      parallel(nested);
      __kmpc_serialized_parallel(nullptr, 0);
      CHECK(omp_get_num_threads() == 1);
      __kmpc_end_serialized_parallel(nullptr, 0);
      CHECK(omp_get_num_threads() == threads && omp_get_thread_num() == number);
      masters += __kmpc_master(nullptr, 0);
      for (int i = 0; i < 10; ++i)
        singles += __kmpc_single(nullptr, 0);
    };
    parallel(body);
    CHECK(inner == threads && masters == 1 && singles == 10);
  }
  std::atomic<int> members{0};
  auto count = [&] { ++members; };
  __kmpc_push_num_threads(nullptr, 0, 3);
  parallel(count);
  CHECK(members == 3);
  parallel(count);
  CHECK(members == 3 + 5);
}

/// Sums of floats are the same at every run; critical blocks exclude one another.
static void checkReductions() {
  buddy::setThreadCount(4);
  alignas(8) static char name[32];
  float first = 0;
  for (int run = 0; run < 50; ++run) {
    float sum = 0;
    long counter = 0;
    auto body = [&] {
      for (int round = 0; round < 3; ++round) {
        float part = 1.0f / static_cast<float>(3 + omp_get_thread_num() * 7);
        CHECK(__kmpc_reduce(nullptr, 0, 1, 8, nullptr, nullptr, name) == 1);
        sum = sum * 1.0001f + part;
        __kmpc_end_reduce(nullptr, 0, name);
      }
      for (int i = 0; i < 100; ++i) {
        __kmpc_critical(nullptr, 0, name);
        ++counter;
        __kmpc_end_critical(nullptr, 0, name);
      }
    };
    parallel(body);
    CHECK(counter == 400);
    if (run == 0)
      first = sum;
    CHECK(std::memcmp(&sum, &first, sizeof sum) == 0);
  }
}

/// Regions that several threads of the program start at once.
static void checkTwoCallers() {
  buddy::setThreadCount(2);
  std::atomic<int> total{0};
  const auto caller = [&] {
    for (int i = 0; i < 200; ++i) {
      std::atomic<int> sum{0};
      auto body = [&] { sum += 12 / omp_get_num_threads(); };
      parallel(body);
      CHECK(sum == 12);
      total += sum;
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  CHECK(total == 2 * 200 * 12);
}

static double secondsOf(int regions) {
  std::atomic<std::uint64_t> sum{0};
  auto body = [&] {
    std::int32_t last = 0;
    std::uint64_t lower = 0, upper = 63;
    std::int64_t stride = 1;
    __kmpc_for_static_init_8u(nullptr, 0, balanced, &last, &lower, &upper, &stride, 1, 0);
    sum.fetch_add(upper - lower + 1, std::memory_order_relaxed);
    __kmpc_barrier(nullptr, 0);
  };
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < regions; ++i)
    parallel(body);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(sum == static_cast<std::uint64_t>(regions) * 64);
  return seconds;
}

/// Many tiny regions, on as many threads as CPUs and on more. The limits only catch a collapse (a region that waits
/// for the scheduler's tick takes milliseconds).
static void checkTinyRegions() {
  const int cpus = buddy::allowedCpuCount();
  for (int threads : {cpus, 4 * cpus}) {
    buddy::setThreadCount(threads);
    const int regions = threads == cpus ? 100000 : 2000;
    const double seconds = secondsOf(regions);
    std::printf("%d threads on %d CPUs: %.2f us a region with one barrier\n", threads, cpus, seconds / regions * 1e6);
    CHECK(seconds / regions < 1e-3 * threads);
  }
}

/// An idle pool takes no CPU time.
static void checkIdle() {
  buddy::setThreadCount(buddy::allowedCpuCount() + 1);
  secondsOf(10);
  buddy::setThreadCount(buddy::allowedCpuCount());
  secondsOf(10);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto used = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(used() - before < 0.02);
}

/// A child process works, though the workers stayed with its parent.
[[maybe_unused]] static void checkFork() {
  buddy::setThreadCount(2);
  secondsOf(2);
  const pid_t child = fork();
  if (child == 0) {
    secondsOf(100);
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/// Where threads can not be made, fewer do the work. In a child, which has no threads yet and may have its memory cut.
[[maybe_unused]] static void checkFewerThreads() {
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlimit limit = {pages * 4096 + (8 << 20), RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    buddy::setThreadCount(100);
    int members = 0;
    auto count = [&] {
      if (omp_get_thread_num() == 0)
        members = omp_get_num_threads();
    };
    parallel(count);
    CHECK(members >= 1 && members < 20);
    secondsOf(10);
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main() {
  checkStaticLoops();
  checkSteps();
  checkDynamicLoops();
  checkArguments();
  checkRegions();
  checkReductions();
  checkTwoCallers();
  checkTinyRegions();
  checkIdle();
#ifndef __SANITIZE_THREAD__ // which does not follow threads into a child
  checkFork();
#ifndef __SANITIZE_ADDRESS__ // which needs address space
  checkFewerThreads();
#endif
#endif
  buddy::setThreadCount(0);
  CHECK(buddy::threadCount() == 1);
  buddy::setThreadCount(1 << 30);
  CHECK(buddy::threadCount() == buddy::maxThreadCount);
}
