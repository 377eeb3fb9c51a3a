//===- OpenMP.cpp - The OpenMP entry points that generated code calls -----===//
//
// LLVM's OpenMP ABI (openmp/runtime/src/kmp.h, kmp_csupport.cpp, kmp_sched.cpp), as far as MLIR's OpenMP lowering
// emits it: parallel regions, static and dynamic loops, barriers, reductions, critical, single and master blocks.
// Source locations and global thread numbers are passed by the ABI and not needed here: a thread knows its place.
//
//===----------------------------------------------------------------------===//

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <type_traits>
#include <utility>

#include <sched.h>

#include "Team.h"
#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::runtime;

namespace {

struct Location; // ident_t: never looked at

using Microtask = decltype(RegionCall::task);

template <std::size_t... I> void invokeWith(const RegionCall &call, std::int32_t *thread, std::index_sequence<I...>) {
  using Function = void (*)(std::int32_t *, std::int32_t *, decltype(static_cast<void>(I), static_cast<void *>(0))...);
  std::int32_t bound = 0;
  reinterpret_cast<Function>(call.task)(thread, &bound, call.arguments[I]...);
}

template <std::size_t... Count>
void invokeAny(const RegionCall &call, std::int32_t *thread, std::index_sequence<Count...>) {
  using Invoker = void (*)(const RegionCall &, std::int32_t *);
  static constexpr Invoker invokers[] = {
      [](const RegionCall &c, std::int32_t *t) { invokeWith(c, t, std::make_index_sequence<Count>()); }...};
  invokers[call.count](call, thread);
}

void invoke(const RegionCall &call) {
  std::int32_t thread = state().thread;
  invokeAny(call, &thread, std::make_index_sequence<maxArguments + 1>());
}

/// The size of the next region's team; a request holds for one region.
int takeRequestedCount() {
  const int requested = std::exchange(state().requested, 0);
  return requested > 0 ? requested : threadCount();
}

/// This thread's view of the dynamic loop that it is in.
struct DynamicShare {
  std::uint64_t number, lower, step, trips, chunk;
  bool open; // alone: the one chunk is still to be given
};
thread_local DynamicShare dynamicShare;

void fork(int threads, const RegionCall &call) {
  const DynamicShare outer = dynamicShare; // the region may stand inside of a dynamic loop and have its own
  runRegion(threads, call);
  dynamicShare = outer;
}

void teamBarrier() {
  if (!state().alone())
    state().team->barrier();
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

enum Schedule : std::int32_t { staticChunked = 33, staticBalanced = 34, guidedChunked = 36 };
constexpr std::int32_t scheduleModifiers = 3 << 29; // monotonic, nonmonotonic

/// The number of iterations of lower, lower + step, ... up to `upper`, which is included. An empty loop of unsigned
/// type comes as 0 ... max with step 1, whose count wraps to 0.
template <typename T, typename Step> std::make_unsigned_t<T> tripCount(T lower, T upper, Step step) {
  using Count = std::make_unsigned_t<T>;
  if (step > 0 ? upper < lower : lower < upper)
    return 0;
  const Count distance = step > 0 ? Count(upper) - Count(lower) : Count(lower) - Count(upper);
  const Count width = step > 0 ? Count(step) : Count(0) - Count(step);
  return distance / width + 1;
}

/// Gives a thread its share: one block of nearly equal size, or every n-th chunk. Bounds are inclusive; *stride leads
/// from one chunk of a thread to its next.
template <typename T, typename Step = std::make_signed_t<T>>
void staticShare(std::int32_t schedule, std::int32_t *last, T *lower, T *upper, Step *stride, Step step, Step chunk) {
  using Count = std::make_unsigned_t<T>;
  const Count threads = static_cast<Count>(state().teamSize()), thread = static_cast<Count>(state().number());
  const Count trips = tripCount(*lower, *upper, step);
  const Count advance = static_cast<Count>(step);
  if (trips == 0) {
    *last = 0;
    *stride = step;
    // Nothing to do, for a signed loop as for the unsigned one that wraps.
    *lower = static_cast<T>(Count(*upper) + advance);
    return;
  }
  if ((schedule & ~scheduleModifiers) == staticChunked) {
    const Count size = chunk < 1 ? 1 : static_cast<Count>(chunk);
    const Count span = size * advance;
    *stride = static_cast<Step>(span * threads);
    *lower = static_cast<T>(Count(*lower) + span * thread);
    *upper = static_cast<T>(Count(*lower) + span - advance);
    *last = thread == (trips - 1) / size % threads;
    return;
  }
  const Count share = trips / threads, extra = trips % threads;
  const Count begin = thread * share + std::min(thread, extra), size = share + (thread < extra);
  *stride = static_cast<Step>(trips * advance);
  *last = size && begin + size == trips;
  *lower = static_cast<T>(Count(*lower) + begin * advance);
  *upper = static_cast<T>(Count(*lower) + (size - 1) * advance); // size 0: the end stands before the beginning
}

template <typename T, typename Step = std::make_signed_t<T>>
void dynamicInit(std::int32_t schedule, T lower, T upper, Step step, Step chunk) {
  DynamicShare &share = dynamicShare;
  const std::uint64_t trips = tripCount(lower, upper, step);
  share = {0, static_cast<std::uint64_t>(lower), static_cast<std::uint64_t>(step), trips, trips, true};
  if (state().alone())
    return;
  share.chunk = chunk < 1 ? 1 : static_cast<std::uint64_t>(chunk);
  if ((schedule & ~scheduleModifiers) == guidedChunked) // a few chunks a thread
    share.chunk = std::max(share.chunk, trips / (4 * static_cast<std::uint64_t>(state().teamSize())));
  share.number = state().loops++;
  DynamicLoop &loop = state().team->loop(share.number);
  while (loop.serving.load() != share.number) // a thread is still in the loop before that has the same slot
    sched_yield();
}

/// The next chunk, for the team or for this thread alone; false when there is none.
bool takeChunk(DynamicShare &share, std::uint64_t &chunk) {
  chunk = 0;
  if (state().alone())
    return std::exchange(share.open, false) && share.trips;
  Team &team = *state().team;
  DynamicLoop &loop = team.loop(share.number);
  chunk = loop.next.fetch_add(1);
  if (chunk < share.trips / share.chunk + (share.trips % share.chunk != 0))
    return true;
  if (loop.finished.fetch_add(1) + 1 == team.size()) { // the last one makes the slot free
    loop.next.store(0);
    loop.finished.store(0);
    loop.serving.store(share.number + Team::loopSlots);
  }
  return false;
}

template <typename T, typename Step = std::make_signed_t<T>>
std::int32_t dynamicNext(std::int32_t *last, T *lower, T *upper, Step *stride) {
  DynamicShare &share = dynamicShare;
  std::uint64_t chunk;
  if (!takeChunk(share, chunk))
    return 0;
  const std::uint64_t begin = chunk * share.chunk, end = std::min(begin + share.chunk, share.trips);
  *lower = static_cast<T>(share.lower + begin * share.step);
  *upper = static_cast<T>(share.lower + (end - 1) * share.step);
  if (stride)
    *stride = static_cast<Step>(share.step);
  if (last)
    *last = end == share.trips;
  return 1;
}

//===----------------------------------------------------------------------===//
// Locks
//===----------------------------------------------------------------------===//

/// The lock behind a name that the compiler allotted (kmp_critical_name: 32 zero bytes, 8-byte aligned).
std::mutex &lockOf(void *name) {
  std::atomic<std::mutex *> &slot = *static_cast<std::atomic<std::mutex *> *>(name);
  std::mutex *lock = slot.load(std::memory_order_acquire);
  if (lock)
    return *lock;
  std::mutex *fresh = new std::mutex;
  if (slot.compare_exchange_strong(lock, fresh))
    return *fresh;
  delete fresh;
  return *lock;
}

} // namespace

extern "C" {

//===----------------------------------------------------------------------===//
// Regions
//===----------------------------------------------------------------------===//

void __kmpc_begin(Location *, std::int32_t) {}
void __kmpc_end(Location *) {}
std::int32_t __kmpc_global_thread_num(Location *) { return state().thread; }
std::int32_t __kmpc_global_num_threads(Location *) { return threadCount(); }
std::int32_t __kmpc_bound_thread_num(Location *) { return state().number(); }
std::int32_t __kmpc_bound_num_threads(Location *) { return state().teamSize(); }
std::int32_t __kmpc_ok_to_fork(Location *) { return 1; }

void __kmpc_push_num_threads(Location *, std::int32_t, std::int32_t count) { state().requested = count; }
void __kmpc_push_proc_bind(Location *, std::int32_t, std::int32_t) {}

void __kmpc_fork_call(Location *, std::int32_t count, Microtask task, ...) {
  if (count < 0 || count > maxArguments) {
    std::fprintf(stderr, "buddy: a parallel region has %d arguments and at most %d are possible\n", count,
                 maxArguments);
    std::abort();
  }
  RegionCall call{invoke, task, count, {}};
  va_list list;
  va_start(list, task);
  for (int i = 0; i < count; ++i)
    call.arguments[static_cast<std::size_t>(i)] = va_arg(list, void *);
  va_end(list);
  fork(takeRequestedCount(), call);
}

void __kmpc_fork_call_if(Location *, std::int32_t, Microtask task, std::int32_t condition, void *argument) {
  const RegionCall call{invoke, task, argument ? 1 : 0, {argument}};
  const int count = takeRequestedCount();
  fork(condition ? count : 1, call);
}

void __kmpc_serialized_parallel(Location *, std::int32_t) {
  state().requested = 0;
  ++state().serialDepth;
}
void __kmpc_end_serialized_parallel(Location *, std::int32_t) { --state().serialDepth; }

void __kmpc_barrier(Location *, std::int32_t) { teamBarrier(); }
void __kmpc_flush(Location *) { std::atomic_thread_fence(std::memory_order_seq_cst); }

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

#define BUDDY_OMP_LOOP(SUFFIX, T, STEP)                                                                                \
  void __kmpc_for_static_init_##SUFFIX(Location *, std::int32_t, std::int32_t schedule, std::int32_t *last, T *lower,  \
                                       T *upper, STEP *stride, STEP step, STEP chunk) {                                \
    staticShare<T>(schedule, last, lower, upper, stride, step, chunk);                                                 \
  }                                                                                                                    \
  void __kmpc_dispatch_init_##SUFFIX(Location *, std::int32_t, std::int32_t schedule, T lower, T upper, STEP step,     \
                                     STEP chunk) {                                                                     \
    dynamicInit<T>(schedule, lower, upper, step, chunk);                                                               \
  }                                                                                                                    \
  std::int32_t __kmpc_dispatch_next_##SUFFIX(Location *, std::int32_t, std::int32_t *last, T *lower, T *upper,         \
                                             STEP *stride) {                                                           \
    return dynamicNext<T>(last, lower, upper, stride);                                                                 \
  }                                                                                                                    \
  void __kmpc_dispatch_fini_##SUFFIX(Location *, std::int32_t) {}

BUDDY_OMP_LOOP(4, std::int32_t, std::int32_t)
BUDDY_OMP_LOOP(4u, std::uint32_t, std::int32_t)
BUDDY_OMP_LOOP(8, std::int64_t, std::int64_t)
BUDDY_OMP_LOOP(8u, std::uint64_t, std::int64_t)
#undef BUDDY_OMP_LOOP

void __kmpc_dispatch_deinit(Location *, std::int32_t) {}
void __kmpc_for_static_fini(Location *, std::int32_t) {}

//===----------------------------------------------------------------------===//
// Reductions and blocks for one thread
//===----------------------------------------------------------------------===//

// Threads add their part one after the other in the order of their numbers, so that sums of floats do not vary.
std::int32_t __kmpc_reduce_nowait(Location *, std::int32_t, std::int32_t, std::size_t, void *, void (*)(void *, void *),
                                  void *) {
  if (!state().alone())
    state().team->awaitTurn(state().thread);
  return 1;
}
void __kmpc_end_reduce_nowait(Location *, std::int32_t, void *) {
  if (!state().alone())
    state().team->passTurn(state().thread);
}
std::int32_t __kmpc_reduce(Location *location, std::int32_t thread, std::int32_t count, std::size_t size, void *data,
                           void (*combine)(void *, void *), void *lock) {
  return __kmpc_reduce_nowait(location, thread, count, size, data, combine, lock);
}
void __kmpc_end_reduce(Location *location, std::int32_t thread, void *lock) {
  __kmpc_end_reduce_nowait(location, thread, lock);
  teamBarrier();
}

void __kmpc_critical(Location *, std::int32_t, void *name) { lockOf(name).lock(); }
void __kmpc_critical_with_hint(Location *, std::int32_t, void *name, std::uint32_t) { lockOf(name).lock(); }
void __kmpc_end_critical(Location *, std::int32_t, void *name) { lockOf(name).unlock(); }

std::int32_t __kmpc_master(Location *, std::int32_t) { return state().number() == 0; }
void __kmpc_end_master(Location *, std::int32_t) {}
std::int32_t __kmpc_masked(Location *, std::int32_t, std::int32_t filter) { return state().number() == filter; }
void __kmpc_end_masked(Location *, std::int32_t) {}

std::int32_t __kmpc_single(Location *, std::int32_t) {
  if (state().alone())
    return 1;
  std::uint64_t mine = state().singles++;
  return state().team->singles.compare_exchange_strong(mine, mine + 1);
}
void __kmpc_end_single(Location *, std::int32_t) {}

//===----------------------------------------------------------------------===//
// The user's functions
//===----------------------------------------------------------------------===//

int omp_get_thread_num() { return state().number(); }
int omp_get_num_threads() { return state().teamSize(); }
int omp_get_max_threads() { return threadCount(); }
int omp_get_num_procs() { return allowedCpuCount(); }
int omp_in_parallel() { return !state().alone(); }
void omp_set_num_threads(int count) { setThreadCount(count); }
double omp_get_wtime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // extern "C"
