//===- cpu_test.cpp - CPU quotas and features -----------------------------===//

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sched.h>
#include <unistd.h>

#include "Check.h"
#include "CpuQuota.h"
#include "buddy/CpuFeatures.h"
#include "buddy/Threads.h"

namespace fs = std::filesystem;

static fs::path root;

static void write(const std::string &file, const std::string &text) {
  fs::create_directories((root / file).parent_path());
  std::ofstream(root / file) << text;
}

/// The limit for a membership file; the tree under `root` is made anew after each question.
static int limit(const std::string &membership) {
  write("self-cgroup", membership);
  const int cpus = buddy::cgroupCpuLimit((root / "self-cgroup").string(), (root / "cgroup").string());
  fs::remove_all(root);
  return cpus;
}

static void checkQuotas() {
  CHECK(limit("0::/\n") == 0);
  CHECK(limit("") == 0);
  CHECK(buddy::cgroupCpuLimit("/nowhere", "/nowhere") == 0);

  write("cgroup/cpu.max", "50000 100000\n");
  CHECK(limit("0::/\n") == 1);
  write("cgroup/a/b/cpu.max", "150000 100000\n");
  CHECK(limit("0::/a/b\n") == 2);
  write("cgroup/a/cpu.max", "300000 100000\n");
  write("cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(limit("0::/a/b\n") == 3); // an ancestor's
  write("cgroup/a/cpu.max", "400000 100000\n");
  CHECK(limit("0::/host/path/that/is/not/mounted\n") == 0);
  write("cgroup/cpu.max", "200000 100000\n");
  CHECK(limit("0::/host/path/that/is/not/mounted\n") == 2);
  write("cgroup/cpu.max", "nonsense\n");
  CHECK(limit("0::/\nnonsense\n::\n") == 0);
  write("cgroup/cpu.max", "9223372036854775807 1\n");
  CHECK(limit("0::/\n") > 1000);

  write("cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n");
  write("cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  write("cgroup/memory/cpu.max", "1 100000\n");
  CHECK(limit("5:memory:/\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n") == 3);
  write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(limit("3:cpu:/\n") == 0);
  write("cgroup/unified/s/cpu.max", "1000 100000\n");
  CHECK(limit("0::/s\n") == 1);
}

static void checkAffinity() {
  const int all = buddy::allowedCpuCount();
  CHECK(all >= 1);
  CHECK(buddy::threadCount() == all);
#ifdef __linux__
  cpu_set_t before, one;
  CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before))
      CPU_SET(cpu, &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(buddy::allowedCpuCount() == 1);
  sched_setaffinity(0, sizeof before, &before);
#endif
}

/// What Linux lists of this CPU.
static bool listed(const std::string &flag) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0)
      return (line + " ").find(" " + flag + " ") != std::string::npos;
  return false;
}

static void checkFeatures() {
  CHECK(buddy::missingCpuFeatures(nullptr, 0).empty());
  const std::string_view unknown[] = {"nonsense", ""};
  CHECK(buddy::missingCpuFeatures(unknown, 2) == "nonsense, ");
  static_assert(!buddy::isKnownCpuFeature("nonsense") && !buddy::isKnownCpuFeature(""));
#if defined(__x86_64__)
  static_assert(buddy::isKnownCpuFeature("avx2"));
  const struct {
    std::string_view name;
    const char *listing;
  } features[] = {{"sse2", "sse2"},
                  {"sse3", "pni"},
                  {"ssse3", "ssse3"},
                  {"sse4.1", "sse4_1"},
                  {"sse4.2", "sse4_2"},
                  {"popcnt", "popcnt"},
                  {"avx", "avx"},
                  {"avx2", "avx2"},
                  {"fma", "fma"},
                  {"f16c", "f16c"},
                  {"bmi", "bmi1"},
                  {"bmi2", "bmi2"},
                  {"lzcnt", "abm"},
                  {"movbe", "movbe"},
                  {"avx512f", "avx512f"},
                  {"avx512bw", "avx512bw"},
                  {"avx512vl", "avx512vl"},
                  {"avx512dq", "avx512dq"},
                  {"avx512cd", "avx512cd"},
                  {"avx512vnni", "avx512_vnni"},
                  {"avx512bf16", "avx512_bf16"},
                  {"avx512fp16", "avx512_fp16"},
                  {"avxvnni", "avx_vnni"},
                  {"amx-int8", "amx_int8"},
                  {"xop", "xop"},
                  {"fma4", "fma4"}};
  for (const auto &[name, listing] : features)
    CHECK(buddy::missingCpuFeatures(&name, 1).empty() == listed(listing));
#elif defined(__aarch64__)
  const std::string_view asimd = "asimd", dotprod = "dotprod";
  CHECK(buddy::missingCpuFeatures(&asimd, 1).empty());
  CHECK(buddy::missingCpuFeatures(&dotprod, 1).empty() == listed("asimddp"));
#endif
}

int main() {
  root = fs::temp_directory_path() / ("cpu-test-" + std::to_string(getpid()));
  checkQuotas();
  checkAffinity();
  checkFeatures();
}
