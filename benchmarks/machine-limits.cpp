//===- machine-limits.cpp - How fast this machine reads and multiplies ----===//
//
// machine-limits FILE [--threads N] [--seconds S] [--anonymous BYTES]
//
// Prints one JSON object: the bandwidth of a plain read loop over FILE, mapped as a program maps its weights, and the
// peak rate of fused multiply-adds on registers, both with N threads, each measured for about S seconds; with
// --anonymous also the bandwidth of that loop over BYTES of anonymous memory in the smallest pages, as KV caches are.
// The figures are medians over rounds; a round begins and ends with all threads. Every other figure of the benchmark
// is a share of these.
//
//===----------------------------------------------------------------------===//

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

//===----------------------------------------------------------------------===//
// The widest vectors of the machine that this is compiled for
//===----------------------------------------------------------------------===//

#if defined(__AVX512F__)
static constexpr int vectorBytes = 64;
static constexpr int fmaChains = 24; // of 32 registers
#elif defined(__AVX__)
static constexpr int vectorBytes = 32;
static constexpr int fmaChains = 12; // of 16 registers
#else
static constexpr int vectorBytes = 16;
static constexpr int fmaChains = 12;
#endif

typedef std::uint32_t IntVector __attribute__((vector_size(vectorBytes)));
typedef float FloatVector __attribute__((vector_size(vectorBytes)));

static constexpr int readAccumulators = 8;
static constexpr std::size_t readBlock = readAccumulators * vectorBytes; // bytes per step of the read loop
static constexpr int lanes = vectorBytes / sizeof(float);

/// Reads [data, data + bytes), whole blocks. Integers are added, since floats may meet slow denormal numbers.
static std::uint32_t readAll(const char *data, std::size_t bytes) {
  IntVector sums[readAccumulators] = {};
  for (const char *end = data + bytes; data != end; data += readBlock) {
    const IntVector *block = reinterpret_cast<const IntVector *>(data);
#pragma GCC unroll 8
    for (int i = 0; i < readAccumulators; ++i)
      sums[i] += block[i];
  }
  IntVector sum = {};
  for (const IntVector &one : sums)
    sum += one;
  std::uint32_t total = 0;
  for (int lane = 0; lane < lanes; ++lane)
    total += sum[lane];
  return total;
}

static constexpr std::int64_t fmaSteps = 200000;
static constexpr double fmaFlops = 2.0 * lanes * fmaChains * fmaSteps; // of one multiplyAdd()

/// x := x * factor + summand, fmaSteps times on each of fmaChains independent vectors; x stays near 1.
static float multiplyAdd() {
  static volatile float factorSource = 0.5f, summandSource = 0.5f; // not known to the compiler
  const FloatVector factor = factorSource - FloatVector{}, summand = summandSource - FloatVector{};
  FloatVector values[fmaChains];
  for (FloatVector &value : values)
    value = factor;
  for (std::int64_t step = 0; step < fmaSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < fmaChains; ++i)
      values[i] = values[i] * factor + summand;
  }
  FloatVector sum = {};
  for (const FloatVector &value : values)
    sum += value;
  return sum[0];
}

//===----------------------------------------------------------------------===//
// A team of threads that works in rounds
//===----------------------------------------------------------------------===//

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// All of `count` threads wait for each other; reusable.
class Barrier {
public:
  explicit Barrier(int count) : count(count) {}

  void wait() {
    const int round = rounds.load();
    if (arrived.fetch_add(1) + 1 == count) {
      arrived.store(0);
      rounds.store(round + 1);
      return;
    }
    while (rounds.load() == round)
      std::this_thread::yield();
  }

private:
  const int count;
  std::atomic<int> arrived{0}, rounds{0};
};

static std::vector<int> allowedCpus() {
  std::vector<int> cpus;
#ifdef __linux__
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask))
        cpus.push_back(cpu);
#endif
  return cpus;
}

/// One thread for each CPU, where there are as many; fewer stay where the scheduler puts them.
static void place(int thread, int threads, const std::vector<int> &cpus) {
#ifdef __linux__
  if (static_cast<std::size_t>(threads) != cpus.size() || threads == 1)
    return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpus[static_cast<std::size_t>(thread)], &mask);
  pthread_setaffinity_np(pthread_self(), sizeof mask, &mask); // refused: the scheduler decides
#else
  (void)thread, (void)threads, (void)cpus;
#endif
}

struct Rounds {
  double medianSeconds;
  std::size_t count;
};

/// Runs `work(thread)` on all threads, one untimed round and then rounds for about `seconds` but at least three.
static Rounds measure(int threads, double seconds, const std::function<void(int)> &work) {
  const std::vector<int> cpus = allowedCpus();
  Barrier begin(threads), end(threads);
  std::atomic<bool> more{true};
  std::vector<double> times;

  const auto follow = [&](int thread) {
    place(thread, threads, cpus);
    while (true) {
      begin.wait();
      if (!more.load())
        return;
      work(thread);
      end.wait();
    }
  };
  const auto lead = [&] {
    place(0, threads, cpus);
    const double start = now();
    for (bool timed = false; !timed || times.size() < 3 || now() - start < seconds; timed = true) {
      begin.wait();
      const double before = now();
      work(0);
      end.wait();
      if (timed)
        times.push_back(now() - before);
    }
    more.store(false);
    begin.wait();
  };
  std::vector<std::thread> team;
  for (int thread = 1; thread < threads; ++thread)
    team.emplace_back(follow, thread);
  std::thread(lead).join();
  for (std::thread &thread : team)
    thread.join();

  std::sort(times.begin(), times.end());
  const std::size_t middle = times.size() / 2;
  return {times.size() % 2 ? times[middle] : (times[middle - 1] + times[middle]) / 2, times.size()};
}

//===----------------------------------------------------------------------===//
// The program
//===----------------------------------------------------------------------===//

namespace {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string file;
  int threads = 1;
  double seconds = 0.5;
  std::size_t anonymousBytes = 0; // 0: not measured
};

/// Memory that lives as long as the program: a file mapped read-only, or anonymous.
struct Mapping {
  const char *data;
  std::size_t bytes;
};

} // namespace

static Mapping mapFile(const std::string &path) {
  const auto failure = [&](const std::string &what) { return std::runtime_error("the file '" + path + "' " + what); };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status) != 0)
    throw failure(std::string("can not be opened (") + std::strerror(errno) + ")");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || bytes < readBlock)
    throw failure("is no regular file of at least " + std::to_string(readBlock) + " bytes: name a weights file");
  void *mapping = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0); // as in cpp/containers/Weights.cpp
  if (mapping == MAP_FAILED)
    throw failure(std::string("can not be mapped into memory (") + std::strerror(errno) + ")");
  close(descriptor);
  return {static_cast<const char *>(mapping), bytes};
}

/// Anonymous memory, each page touched: without that all of them would be the one page of zeros.
static Mapping mapAnonymous(std::size_t bytes) {
  void *mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED)
    throw std::runtime_error(std::to_string(bytes) + " bytes of memory can not be had (" + std::strerror(errno) + ")");
#ifdef MADV_NOHUGEPAGE
  madvise(mapping, bytes, MADV_NOHUGEPAGE); // refused: the system has no huge pages
#endif
  std::memset(mapping, 1, bytes);
  return {static_cast<const char *>(mapping), bytes};
}

/// The number behind option `name`. Throws UsageError unless it lies from `least` to `most` and is whole, if it must.
static double numberOf(const std::string &name, const char *text, double least, double most, bool whole) {
  char *end = nullptr;
  const double value = std::strtod(text, &end);
  const bool valid = *end == '\0' && end != text && value >= least && value <= most;
  if (!valid || (whole && value != std::floor(value))) {
    char range[64];
    std::snprintf(range, sizeof range, " takes a number from %g to %.0f, not '", least, most);
    throw UsageError(name + range + text + "'");
  }
  return value;
}

static Options parseOptions(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name != "--threads" && name != "--seconds" && name != "--anonymous") {
      if (name.rfind("-", 0) == 0 || !options.file.empty())
        throw UsageError("'" + name + "' is unknown");
      options.file = name;
      continue;
    }
    if (++i == argc)
      throw UsageError(name + " needs a value");
    if (name == "--threads")
      options.threads = static_cast<int>(numberOf(name, argv[i], 1, 1024, true));
    else if (name == "--seconds")
      options.seconds = numberOf(name, argv[i], 0.001, 1024, false);
    else
      options.anonymousBytes = static_cast<std::size_t>(numberOf(name, argv[i], readBlock, 1e12, true));
  }
  if (options.file.empty())
    throw UsageError("a file is needed");
  return options;
}

/// Bytes in a second of the read loop over `mapping`, and what it summed up over all rounds, the untimed one included.
struct Reading {
  std::size_t bytes;
  Rounds rounds;
  std::uint32_t checksum;

  double bytesPerSecond() const { return static_cast<double>(bytes) / rounds.medianSeconds; }
};

static Reading measureReading(const Mapping &mapping, const Options &options) {
  const std::size_t blocks = mapping.bytes / readBlock;
  const auto boundary = [&](int thread) {
    return blocks * static_cast<std::size_t>(thread) / static_cast<std::size_t>(options.threads) * readBlock;
  };
  std::atomic<std::uint32_t> checksum{0};
  const Rounds rounds = measure(options.threads, options.seconds, [&](int thread) {
    checksum += readAll(mapping.data + boundary(thread), boundary(thread + 1) - boundary(thread));
  });
  return {blocks * readBlock, rounds, checksum.load()};
}

static void run(const Options &options) {
  const Reading file = measureReading(mapFile(options.file), options);
  std::atomic<float> product{0}; // what was computed must go somewhere
  const Rounds multiplications = measure(options.threads, options.seconds, [&](int) { product = multiplyAdd(); });
  char anonymous[128] = "";
  if (options.anonymousBytes) {
    const Reading memory = measureReading(mapAnonymous(options.anonymousBytes), options);
    std::snprintf(anonymous, sizeof anonymous, ", \"anonymous_bytes\": %zu, \"anonymous_bytes_per_second\": %.6g",
                  memory.bytes, memory.bytesPerSecond());
  }
  std::printf("{\"threads\": %d, \"vector_bits\": %d, \"read_bytes\": %zu, \"read_rounds\": %zu, "
              "\"read_bytes_per_second\": %.6g, \"fma_rounds\": %zu, \"fma_flops_per_second\": %.6g, "
              "\"checksum\": %u%s}\n",
              options.threads, vectorBytes * 8, file.bytes, file.rounds.count, file.bytesPerSecond(),
              multiplications.count, options.threads * fmaFlops / multiplications.medianSeconds, file.checksum,
              anonymous);
}

int main(int argc, char **argv) {
  try {
    run(parseOptions(argc, argv));
    return 0;
  } catch (const UsageError &error) {
    std::fprintf(stderr,
                 "machine-limits: %s; usage: machine-limits FILE [--threads N] [--seconds S] [--anonymous BYTES]\n",
                 error.what());
    return 2;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "machine-limits: %s\n", error.what());
    return 1;
  }
}
