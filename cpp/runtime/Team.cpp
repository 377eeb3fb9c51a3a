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
  barrierEvent.wait([&] { return generation.load() != mine; }, maySpin);
}

void Team::awaitTurn(int thread) {
  turnEvent.wait([&] { return turn.load() == thread; }, maySpin);
}

void Team::passTurn(int thread) {
  turn.store((thread + 1) % threads);
  turnEvent.notify();
}

void Team::reset(int size, bool spins) {
  threads = size;
  maySpin = spins;
  singles.store(0, std::memory_order_relaxed);
  turn.store(0, std::memory_order_relaxed);
  if (!loopsUsed.exchange(false, std::memory_order_relaxed))
    return;
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

  void run(int count, void (*body)(void *), void *context);

private:
  /// What a new thread is told.
  struct NewWorker {
    Pool *pool;
    int thread;
    Event *start;
  };

  int workers() const { return static_cast<int>(starts.size()); }
  void ensureWorkers(int wanted);
  void work(int thread, Event &start);
  static void *startWorker(void *newWorker);
  void runBody(int thread);

  // A region is announced by a ticket: its number, and the size of its team in the low 16 bits. A worker outside of
  // the team reads nothing but the ticket, so the region's other members may change under it. Each worker sleeps by
  // itself, so that those outside of the team are left asleep.
  static constexpr int sizeBits = 16;
  static int teamSizeOf(std::uint64_t ticket) { return static_cast<int>(ticket & ((1 << sizeBits) - 1)); }

  std::atomic<bool> taken{false};
  Placement placement;
  std::vector<pthread_t> threadHandles; // of worker i: threadHandles[i - 1], and so below
  std::vector<std::unique_ptr<Event>> starts;
  alignas(64) std::atomic<std::uint64_t> ticket{0};
  std::atomic<bool> workersMaySpin{false};
  alignas(64) std::atomic<int> running{0}; // workers of the team that are not done yet
  Event finished;
  void (*regionBody)(void *) = nullptr;
  void *regionContext = nullptr;
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

void Pool::runBody(int thread) {
  ThreadState &mine = state();
  mine.team = this;
  mine.thread = thread;
  mine.singles = 0;
  mine.loops = 0;
  regionBody(regionContext);
  mine.team = nullptr;
  mine.thread = 0;
}

void Pool::work(int thread, Event &start) {
  std::uint64_t seen = 0, current = 0;
  const auto called = [&] {
    current = ticket.load();
    return current != seen && thread < teamSizeOf(current);
  };
  while (true) {
    start.wait(called, workersMaySpin.load(std::memory_order_relaxed));
    seen = current;
    runBody(thread);
    if (running.fetch_sub(1) == 1)
      finished.notify();
  }
}

void *Pool::startWorker(void *argument) {
  const std::unique_ptr<NewWorker> worker(static_cast<NewWorker *>(argument));
  worker->pool->work(worker->thread, *worker->start);
  return nullptr;
}

void Pool::ensureWorkers(int wanted) {
  if (workers() >= wanted)
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
  while (workers() < wanted) {
    starts.push_back(std::make_unique<Event>());
    auto worker = std::make_unique<NewWorker>(NewWorker{this, workers(), starts.back().get()});
    if (pthread_create(&thread, &attributes, startWorker, worker.get()) != 0) {
      starts.pop_back();
      break;
    }
    worker.release(); // the thread has it now
    threadHandles.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::run(int count, void (*body)(void *), void *context) {
  ensureWorkers(count - 1);
  const int size = std::min(count, workers() + 1);
  const bool spins = size <= placement.cpuCount();
  placement.arrange(threadHandles, size);
  reset(size, spins);
  workersMaySpin.store(spins, std::memory_order_relaxed);
  regionBody = body;
  regionContext = context;
  running.store(size - 1, std::memory_order_relaxed);
  const std::uint64_t number = (ticket.load(std::memory_order_relaxed) >> sizeBits) + 1;
  ticket.store(number << sizeBits | static_cast<std::uint64_t>(size));
  for (int i = 0; i < size - 1; ++i)
    starts[static_cast<std::size_t>(i)]->notify();
  runBody(0);
  finished.wait([&] { return running.load() == 0; }, maySpin);
}

void runtime::runRegion(int count, void (*body)(void *), void *context) {
  ThreadState &mine = state();
  if (count > 1 && mine.alone() && mine.serialDepth == 0) {
    Pool &workers = pool();
    if (workers.tryTake()) {
      workers.run(std::min(count, maxThreadCount), body, context);
      workers.giveBack();
      return;
    }
  }
  ++mine.serialDepth;
  body(context);
  --mine.serialDepth;
}
