// RUN: buddy-opt %s --quantize-vectorize --split-input-file --verify-diagnostics

module attributes {buddy.target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 128 : i64,
    registers = 16 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {
// expected-error @+1 {{quantising function 'f' has no integer 'rotation' in its buddy.quantize}}
func.func private @f(%x: memref<?x96xf32>) attributes {buddy.quantize = {}} {
  return
}
}

// -----

module attributes {buddy.target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 128 : i64,
    registers = 16 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {
// expected-error @+1 {{must have the buffers x, integers and scales, no results}}
func.func private @f(%x: memref<?x96xf32>) attributes {buddy.quantize = {rotation = 1 : i64}} {
  return
}
}

// -----

module attributes {buddy.target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 128 : i64,
    registers = 16 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {
// expected-error @+1 {{must have contiguous buffers: x and scales of rank 2 in f32, integers in i8 or i16}}
func.func private @f(%x: memref<?x96xf32>, %q: memref<?x3x8x4xi32>, %s: memref<?x3xf32>)
    attributes {buddy.quantize = {rotation = 1 : i64}} {
  return
}
}

// -----

module attributes {buddy.target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 128 : i64,
    registers = 16 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {
// expected-error @+1 {{has buffers whose sizes do not fit together}}
func.func private @f(%x: memref<?x96xf32>, %q: memref<?x3x8x4xi8>, %s: memref<?x4xf32>)
    attributes {buddy.quantize = {rotation = 1 : i64}} {
  return
}
}

// -----

module attributes {buddy.target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 128 : i64,
    registers = 16 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {
// expected-error @+1 {{has a 'rotation' that is no power of two that divides a group}}
func.func private @f(%x: memref<?x96xf32>, %q: memref<?x3x8x4xi8>, %s: memref<?x3xf32>)
    attributes {buddy.quantize = {rotation = 64 : i64}} {
  return
}
}
