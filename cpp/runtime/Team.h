//===- Team.h - The threads that run a parallel region together -----------===//
//
// One pool of worker threads serves the whole process. A region runs on a team: the calling thread and the first
// workers of the pool. Regions inside a region, and regions that start while another thread's region has the pool, run
// on their own thread alone.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_RUNTIME_TEAM_H
#define BUDDY_RUNTIME_TEAM_H

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace buddy::runtime {

/// Lets the sibling thread of the core, or the power management, know that this is a waiting loop.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__riscv)
  asm volatile(".4byte 0x0100000f" ::: "memory"); // pause, a hint that older cores ignore
#endif
}

/// Waits for a condition that another thread makes true: a short spin first (if `maySpin`), then sleep.
class Event {
public:
  /// Returns once `ready()` holds. `ready` reads atomics with sequential consistency.
  template <typename Ready> void wait(Ready ready, bool maySpin) {
    if (ready() || (maySpin && spin(ready)))
      return;
    std::unique_lock<std::mutex> lock(mutex);
    sleepers.fetch_add(1);
    while (!ready())
      changed.wait(lock);
    sleepers.fetch_sub(1);
  }

  /// Spins for a while; whether `ready()` holds then.
  template <typename Ready> static bool spin(Ready ready) {
    SpinBudget budget;
    do {
      for (int i = 0; i < looksPerClock; ++i) {
        if (ready()) {
          budget.succeeded();
          return true;
        }
        relax();
      }
    } while (budget.left());
    budget.failed();
    return false;
  }

  /// To be called after the condition became true, by a sequentially consistent store. After another store a thread
  /// that is just falling asleep may be missed.
  void notify() {
    // Either the sleeper is seen here, or it sees the store when it looks at the condition before it sleeps.
    if (sleepers.load() == 0)
      return;
    {
      std::lock_guard<std::mutex> lock(mutex);
    }
    changed.notify_all();
  }

private:
  static constexpr int looksPerClock = 32; // a look at the clock takes as long as a few at a condition

  /// How long this thread spins: less after spins in vain, fully again after one that was worth it.
  class SpinBudget {
  public:
    SpinBudget();
    bool left() const;
    void succeeded();
    void failed();

  private:
    std::int64_t deadline; // nanoseconds
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};
};

/// Work that threads take chunk by chunk (schedules other than static).
struct DynamicLoop {
  std::atomic<std::uint64_t> serving{0}; // the number of the loop, in its region, that has this slot
  std::atomic<std::uint64_t> next{0};    // the next chunk
  std::atomic<int> finished{0};          // threads that found no more
};

/// What the threads of a region share. The members are reset at the start of a region.
class Team {
public:
  static constexpr std::size_t loopSlots = 8;

  int size() const noexcept { return threads; }

  /// Returns once every thread of the team is here.
  void barrier();

  /// Waits until it is `thread`'s turn; turns go round in the order of threads. passTurn ends it.
  void awaitTurn(int thread);
  void passTurn(int thread);

  DynamicLoop &loop(std::uint64_t number) {
    loopsUsed.store(true, std::memory_order_relaxed);
    return loops[number % loopSlots];
  }

  alignas(64) std::atomic<std::uint64_t> singles{0}; // `single` blocks that some thread has taken

protected:
  void reset(int size, bool spins);

  // Read by all in every region and hardly ever written: a line that every core keeps.
  alignas(64) int threads = 1;
  std::atomic<bool> maySpin{false}; // only while each thread can have a CPU of its own

private:
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};
  Event barrierEvent;
  std::atomic<int> turn{0};
  Event turnEvent;
  std::array<DynamicLoop, loopSlots> loops;
  std::atomic<bool> loopsUsed{true};
};

/// Where a thread stands.
struct ThreadState {
  Team *team = nullptr;      // nullptr: outside of a region, or in one of this thread alone
  int thread = 0;            // its number in the team
  int serialDepth = 0;       // regions of this thread alone around it
  int requested = 0;         // thread count that the next region asks for
  std::uint64_t singles = 0; // `single` blocks met in this region
  std::uint64_t loops = 0;   // dynamic loops met in this region

  bool alone() const noexcept { return serialDepth > 0 || !team; }
  int teamSize() const noexcept { return alone() ? 1 : team->size(); }
  int number() const noexcept { return alone() ? 0 : thread; }
};

/// This thread's state.
ThreadState &state() noexcept;

/// As many arguments of a region as LLVM's own runtime takes; the lowering passes one pointer to a structure.
constexpr int maxArguments = 15;

/// What the threads of a region run: `run` calls `task` with the first `count` arguments.
struct RegionCall {
  void (*run)(const RegionCall &call);
  void (*task)(std::int32_t *globalThread, std::int32_t *boundThread, ...);
  int count;
  std::array<void *, maxArguments> arguments;
};

/// Runs the call on `count` threads at once (fewer when threads can't be made) and returns when all are done.
void runRegion(int count, const RegionCall &call);

} // namespace buddy::runtime

#endif // BUDDY_RUNTIME_TEAM_H
