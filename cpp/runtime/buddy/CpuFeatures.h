//===- CpuFeatures.h - What the CPU must offer before generated code runs -===//
//
// Generated code uses instructions of its target. A program that is itself compiled for the baseline asks here first
// and says in a sentence what is missing, instead of dying of SIGILL.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_CPUFEATURES_H
#define BUDDY_CPUFEATURES_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace buddy {

/// Where a feature, by LLVM's name for it, is stated.
struct CpuFeature {
  std::string_view name;
#if defined(__x86_64__) || defined(__i386__)
  std::uint32_t leaf, subleaf; // of the CPUID instruction
  int reg;                     // 0 ... 3: EAX, EBX, ECX, EDX
  int bit;
  std::uint64_t state; // bits of XCR0 by which the system says that it saves the registers
#else
  int word; // 0: AT_HWCAP, 1: AT_HWCAP2
  int bit;
#endif
};

inline constexpr CpuFeature knownCpuFeatures[] = {
#if defined(__x86_64__) || defined(__i386__)
    {"sse2", 1, 0, 3, 26, 0},
    {"sse3", 1, 0, 2, 0, 0},
    {"pclmul", 1, 0, 2, 1, 0},
    {"ssse3", 1, 0, 2, 9, 0},
    {"fma", 1, 0, 2, 12, 0x6},
    {"cx16", 1, 0, 2, 13, 0},
    {"sse4.1", 1, 0, 2, 19, 0},
    {"sse4.2", 1, 0, 2, 20, 0},
    {"movbe", 1, 0, 2, 22, 0},
    {"popcnt", 1, 0, 2, 23, 0},
    {"aes", 1, 0, 2, 25, 0},
    {"avx", 1, 0, 2, 28, 0x6},
    {"f16c", 1, 0, 2, 29, 0x6},
    {"bmi", 7, 0, 1, 3, 0},
    {"avx2", 7, 0, 1, 5, 0x6},
    {"bmi2", 7, 0, 1, 8, 0},
    {"avx512f", 7, 0, 1, 16, 0xE6},
    {"avx512dq", 7, 0, 1, 17, 0xE6},
    {"avx512ifma", 7, 0, 1, 21, 0xE6},
    {"avx512cd", 7, 0, 1, 28, 0xE6},
    {"avx512bw", 7, 0, 1, 30, 0xE6},
    {"avx512vl", 7, 0, 1, 31, 0xE6},
    {"avx512vbmi", 7, 0, 2, 1, 0xE6},
    {"avx512vbmi2", 7, 0, 2, 6, 0xE6},
    {"gfni", 7, 0, 2, 8, 0},
    {"vaes", 7, 0, 2, 9, 0x6},
    {"avx512vnni", 7, 0, 2, 11, 0xE6},
    {"avx512bitalg", 7, 0, 2, 12, 0xE6},
    {"avx512vpopcntdq", 7, 0, 2, 14, 0xE6},
    {"amx-bf16", 7, 0, 3, 22, 0x60000},
    {"avx512fp16", 7, 0, 3, 23, 0xE6},
    {"amx-tile", 7, 0, 3, 24, 0x60000},
    {"amx-int8", 7, 0, 3, 25, 0x60000},
    {"avxvnni", 7, 1, 0, 4, 0x6},
    {"avx512bf16", 7, 1, 0, 5, 0xE6},
    {"avxifma", 7, 1, 0, 23, 0x6},
    {"avxvnniint8", 7, 1, 3, 4, 0x6},
    {"avxneconvert", 7, 1, 3, 5, 0x6},
    {"avxvnniint16", 7, 1, 3, 10, 0x6},
    {"lzcnt", 0x80000001, 0, 2, 5, 0},
    {"xop", 0x80000001, 0, 2, 11, 0x6},
    {"fma4", 0x80000001, 0, 2, 16, 0x6},
#elif defined(__aarch64__)
    {"fp-armv8", 0, 0}, {"asimd", 0, 1},     {"neon", 0, 1},  {"aes", 0, 3},   {"sha2", 0, 6},     {"crc", 0, 7},
    {"lse", 0, 8},      {"fullfp16", 0, 10}, {"rdm", 0, 12},  {"rcpc", 0, 15}, {"dotprod", 0, 20}, {"sve", 0, 22},
    {"fp16fml", 0, 23}, {"sve2", 1, 1},      {"i8mm", 1, 13}, {"bf16", 1, 14},
#elif defined(__riscv)
    {"a", 0, 'a' - 'a'}, {"c", 0, 'c' - 'a'}, {"d", 0, 'd' - 'a'}, {"f", 0, 'f' - 'a'},
    {"i", 0, 'i' - 'a'}, {"m", 0, 'm' - 'a'}, {"v", 0, 'v' - 'a'},
#else
    {"", 0, 0},
#endif
};

/// False for a name that missingCpuFeatures could not look up; for a static_assert beside the list.
constexpr bool isKnownCpuFeature(std::string_view name) {
  for (const CpuFeature &feature : knownCpuFeatures)
    if (!name.empty() && feature.name == name)
      return true;
  return false;
}

/// Those of `names` that this CPU (or the system that runs on it) does not offer, separated by ", "; empty when all
/// are there. A name that is not known counts as missing.
std::string missingCpuFeatures(const std::string_view *names, std::size_t count);

} // namespace buddy

#endif // BUDDY_CPUFEATURES_H
