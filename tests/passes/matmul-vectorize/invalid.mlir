// RUN: buddy-opt %s --matmul-vectorize --split-input-file --verify-diagnostics

// expected-error @+1 {{buddy.target: 'vector_bits' is 96, but a power of two is needed}}
module attributes {buddy.target = {vector_bits = 96 : i64}} {
  func.func private @f() {
    return
  }
}

// -----

// expected-error @+1 {{buddy.target: 'tile_rows' is "six", but an integer from 1 to 32 is needed}}
module attributes {buddy.target = {tile_rows = "six"}} {
  func.func private @f() {
    return
  }
}
