//===- CpuFeatures.cpp - What the CPU must offer before generated code runs ===//

#include "buddy/CpuFeatures.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

using namespace buddy;

#if defined(__x86_64__) || defined(__i386__)

/// XCR0: the register sets that the system saves; 0 when it does not say.
static std::uint64_t savedState() {
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned osxsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & osxsave))
    return 0;
  std::uint32_t low, high;
  asm volatile(".byte 0x0f, 0x01, 0xd0" /* xgetbv */ : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t(high) << 32 | low;
}

static bool isPresent(const CpuFeature &feature) {
  unsigned registers[4];
  if (!__get_cpuid_count(feature.leaf, feature.subleaf, registers, registers + 1, registers + 2, registers + 3))
    return false;
  return (registers[feature.reg] >> feature.bit & 1) && (savedState() & feature.state) == feature.state;
}

#elif defined(__linux__) && (defined(__aarch64__) || defined(__riscv))

static bool isPresent(const CpuFeature &feature) {
  return getauxval(feature.word == 0 ? AT_HWCAP : AT_HWCAP2) >> feature.bit & 1;
}

#else

static bool isPresent(const CpuFeature &) { return false; }

#endif

static bool isPresent(std::string_view name) {
  for (const CpuFeature &feature : knownCpuFeatures)
    if (!name.empty() && feature.name == name)
      return isPresent(feature);
  return false;
}

std::string buddy::missingCpuFeatures(const std::string_view *names, std::size_t count) {
  std::string missing;
  for (std::size_t i = 0; i < count; ++i)
    if (!isPresent(names[i]))
      missing.append(missing.empty() ? "" : ", ").append(names[i]);
  return missing;
}
