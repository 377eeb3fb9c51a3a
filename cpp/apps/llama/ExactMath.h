//===- ExactMath.h - exp and log with the same bits everywhere ------------===//
//
// The C library's exp and log differ between platforms in the last bit, and a sampler that compares sums of them would
// now and then choose another token. These use IEEE additions, multiplications and divisions alone, in one order. What
// includes this must be compiled without contraction to fused operations (-ffp-contract=off).
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_EXACTMATH_H
#define BUDDY_APPS_LLAMA_EXACTMATH_H

#include <cstdint>
#include <cstring>

namespace buddy::llama {

namespace detail {
// ln 2 in two parts (fdlibm): the first has 21 zero bits at its end, so that its product with an exponent is exact.
inline constexpr double ln2High = 6.93147180369123816490e-01, ln2Low = 1.90821492927058770002e-10;

inline double fromBits(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
} // namespace detail

/// e to the power of x, for x of at most 0; 0 below -708 and for minus infinity. The relative error is below 1e-15.
inline double exactExp(double x) {
  if (!(x >= -708.0))
    return 0;
  // x = k ln 2 + r with |r| <= ln(2) / 2; then the Taylor series of exp(r), whose next term is below 1e-17.
  const auto k = static_cast<std::int64_t>(x * 1.44269504088896338700 - 0.5);
  const double scale = static_cast<double>(k);
  const double r = (x - scale * detail::ln2High) - scale * detail::ln2Low;
  double sum = 1.0 / 6227020800;
  constexpr double coefficients[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  for (double coefficient : coefficients)
    sum = sum * r + coefficient;
  return sum * detail::fromBits(static_cast<std::uint64_t>(k + 1023) << 52);
}

/// The natural logarithm of a normal x above 0. The absolute error is below 1e-15 times the larger of 1 and |log x|.
inline double exactLog(double x) {
  // x = m * 2^e with m in [1/sqrt(2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  auto exponent = static_cast<std::int64_t>(bits >> 52 & 0x7ff) - 1023;
  double m = detail::fromBits((bits & 0xfffffffffffff) | 0x3ff0000000000000);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int n = 23; n >= 1; n -= 2)
    sum = sum * square + 1.0 / n;
  const double scale = static_cast<double>(exponent);
  return scale * detail::ln2High + (2 * s * sum + scale * detail::ln2Low);
}

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_EXACTMATH_H
