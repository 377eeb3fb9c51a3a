// RUN: buddy-opt %s --matmul-vectorize --verify-diagnostics

// expected-error @below {{'int8_dot' is "mmx", but none, ssse3, avx2, avx512bw, avx512vnni or neon_dotprod is needed}}
module attributes {buddy.target = {int8_dot = "mmx"}} {
  func.func @f() {
    return
  }
}
