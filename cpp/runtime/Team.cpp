//===- Team.cpp - The threads that run a parallel region together ---------===//

#include "Team.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <csignal>
#include <memory>
#include <vector>

#include <pthread.h>

#include "Placement.h"
#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::runtime;

//===----------------------------------------------------------------------===//
// Waiting
//===----------------------------------------------------------------------===//

// Longer than the serial stretches between the regions of one token, far shorter than anybody's patience.
static constexpr std::int64_t longestSpin = 50'000; // nanoseconds

/// Spins in vain, one after the other, of this thread; each halves the next one.
static thread_local int spinsInVain = 0;

static std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Event::SpinBudget::SpinBudget() : deadline(now() + (longestSpin >> spinsInVain)) {}
bool Event::SpinBudget::left() const { return now() < deadline; }
void Event::SpinBudget::succeeded() { spinsInVain = 0; }
void Event::SpinBudget::failed() { spinsInVain = std::min(spinsInVain + 1, 5); }

//===----------------------------------------------------------------------===//
// Team
//===----------------------------------------------------------------------===//

void Team::barrier() {
  const std::uint32_t mine = generation.load();
  if (arrived.fetch_add(1) + 1 == threads) {
    arrived.store(0);
    generation.store(mine + 1);
    barrierEvent.notify();
    return;
  }
  barrierEvent.wait([&] { return generation.load() != mine; }, maySpin.load(std::memory_order_relaxed));
}

void Team::awaitTurn(int thread) {
  turnEvent.wait([&] { return turn.load() == thread; }, maySpin.load(std::memory_order_relaxed));
}

void Team::passTurn(int thread) {
  turn.store((thread + 1) % threads);
  turnEvent.notify();
}

/// Writes only what changes: a write takes the line away from all other cores.
template <typename T> static void change(std::atomic<T> &variable, T value) {
  if (variable.load(std::memory_order_relaxed) != value)
    variable.store(value, std::memory_order_relaxed);
}

void Team::reset(int size, bool spins) {
  if (threads != size)
    threads = size;
  change(maySpin, spins);
  change(singles, std::uint64_t(0));
  change(turn, 0);
  if (!loopsUsed.load(std::memory_order_relaxed))
    return;
  loopsUsed.store(false, std::memory_order_relaxed);
  for (std::size_t i = 0; i < loopSlots; ++i) {
    loops[i].serving.store(i, std::memory_order_relaxed);
    loops[i].next.store(0, std::memory_order_relaxed);
    loops[i].finished.store(0, std::memory_order_relaxed);
  }
}

ThreadState &runtime::state() noexcept {
  static thread_local ThreadState current;
  return current;
}

//===----------------------------------------------------------------------===//
// Pool
//===----------------------------------------------------------------------===//

namespace {

/// The process's workers and their one team. Never destroyed: workers live until the process ends.
class Pool : public Team {
public:
  /// False when another thread's region has the pool.
  bool tryTake() { return !taken.exchange(true, std::memory_order_acquire); }
  void giveBack() { taken.store(false, std::memory_order_release); }

  void run(int count, const RegionCall &call);

private:
  /// What the pool and one of its threads tell each other.
  struct Worker {
    Worker(Pool *owner, int place) : pool(owner), number(place) {}

    Pool *const pool;
    const int number;                               // in a team
    Event start;                                    // each sleeps by itself: those outside of the team are left asleep
    alignas(64) std::atomic<std::uint64_t> done{0}; // the number of the last region that it is done with
  };

  int workerCount() const { return static_cast<int>(workers.size()); }
  void ensureWorkers(int wanted);
  void work(Worker &self);
  static void *startWorker(void *worker);
  void runCall(int thread);
  void announce(const RegionCall &call, int size);
  void wakeTeam(int size);
  void awaitTeam(std::uint64_t number, int size);

  // A region is announced by a ticket: its number, and the size of its team in the low 16 bits. A worker outside of
  // the team reads nothing but the ticket, so the region's other members may change under it.
  static constexpr int sizeBits = 16;
  static int teamSizeOf(std::uint64_t ticket) { return static_cast<int>(ticket & ((1 << sizeBits) - 1)); }
  static std::uint64_t numberOf(std::uint64_t ticket) { return ticket >> sizeBits; }

  std::atomic<bool> taken{false};
  Placement placement;
  std::vector<pthread_t> threadHandles; // of worker i: threadHandles[i - 1], and so below
  std::vector<std::unique_ptr<Worker>> workers;
  Event finished;
  // One cache line has all that a worker needs to begin, as long as there are few arguments.
  alignas(64) std::atomic<std::uint64_t> ticket{0};
  RegionCall region{};
};

} // namespace

static std::atomic<Pool *> thePool{nullptr};

/// A child process has none of its parent's workers: it starts with a new pool.
static void forgetPoolInChild() { thePool.store(nullptr); }

static Pool &pool() {
  Pool *current = thePool.load(std::memory_order_acquire);
  if (current)
    return *current;
  static const int registered = pthread_atfork(nullptr, nullptr, forgetPoolInChild);
  (void)registered;
  Pool *fresh = new Pool;
  if (thePool.compare_exchange_strong(current, fresh))
    return *fresh;
  delete fresh;
  return *current;
}

void Pool::runCall(int thread) {
  ThreadState &mine = state();
  mine.team = this;
  mine.thread = thread;
  mine.singles = 0;
  mine.loops = 0;
  region.run(region);
  mine.team = nullptr;
  mine.thread = 0;
}

void Pool::work(Worker &self) {
  std::uint64_t seen = 0, current = 0;
  const auto called = [&] {
    current = ticket.load();
    return current != seen && self.number < teamSizeOf(current);
  };
  while (true) {
    self.start.wait(called, maySpin.load(std::memory_order_relaxed));
    seen = current;
    runCall(self.number);
    self.done.store(numberOf(seen));
    finished.notify();
  }
}

void *Pool::startWorker(void *argument) {
  Worker &self = *static_cast<Worker *>(argument);
  self.pool->work(self);
  return nullptr;
}

void Pool::ensureWorkers(int wanted) {
  if (workerCount() >= wanted)
    return;
  // Signals are for the threads that the program itself made.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // Generated code keeps little on the stack; a thread's memory is touched only as it is used.
  pthread_attr_setstacksize(&attributes, std::max<std::size_t>(1 << 20, PTHREAD_STACK_MIN));
  pthread_t thread;
  while (workerCount() < wanted) {
    workers.push_back(std::make_unique<Worker>(this, workerCount() + 1));
    if (pthread_create(&thread, &attributes, startWorker, workers.back().get()) != 0) {
      workers.pop_back();
      break;
    }
    threadHandles.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::announce(const RegionCall &call, int size) {
  region.run = call.run;
  region.task = call.task;
  region.count = call.count;
  std::copy_n(call.arguments.begin(), call.count, region.arguments.begin());
  const std::uint64_t number = numberOf(ticket.load(std::memory_order_relaxed)) + 1;
  const std::uint64_t next = number << sizeBits | static_cast<std::uint64_t>(size);
  // Where workers spin, this thread does not wait until they see the ticket, but looks after them when it is done.
  if (maySpin.load(std::memory_order_relaxed))
    ticket.store(next, std::memory_order_release);
  else
    ticket.store(next);
  wakeTeam(size);
}

void Pool::wakeTeam(int size) {
  for (int i = 0; i < size - 1; ++i)
    workers[static_cast<std::size_t>(i)]->start.notify();
}

void Pool::awaitTeam(std::uint64_t number, int size) {
  std::size_t next = 0;
  const auto allDone = [&] {
    while (next + 1 < static_cast<std::size_t>(size) && workers[next]->done.load() == number)
      ++next;
    return next + 1 == static_cast<std::size_t>(size);
  };
  if (allDone())
    return;
  if (maySpin.load(std::memory_order_relaxed)) {
    if (Event::spin(allDone))
      return;
    // A worker that fell asleep just when it was called: now it has either seen the ticket or is seen to sleep.
    ticket.fetch_add(0);
    wakeTeam(size);
  }
  finished.wait(allDone, false);
}

void Pool::run(int count, const RegionCall &call) {
  ensureWorkers(count - 1);
  const int size = std::min(count, workerCount() + 1);
  placement.arrange(threadHandles, size);
  reset(size, size <= placement.cpuCount());
  announce(call, size);
  const std::uint64_t number = numberOf(ticket.load(std::memory_order_relaxed));
  runCall(0);
  awaitTeam(number, size);
}

void runtime::runRegion(int count, const RegionCall &call) {
  ThreadState &mine = state();
  if (count > 1 && mine.alone() && mine.serialDepth == 0) {
    Pool &workers = pool();
    if (workers.tryTake()) {
      workers.run(std::min(count, maxThreadCount), call);
      workers.giveBack();
      return;
    }
  }
  ++mine.serialDepth;
  call.run(call);
  --mine.serialDepth;
}
