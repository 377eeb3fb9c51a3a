// RUN: buddy-opt %s --quantize-vectorize | FileCheck %s

module attributes {buddy.target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 128 : i64,
    registers = 16 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {

// One row: no threads. Two vectors are one group; nothing is mixed.
// CHECK-LABEL: func.func private @one_row(
// CHECK-SAME:    %[[X:.*]]: memref<1x16xf32>, %[[Q:.*]]: memref<1x2x2x4xi8>, %[[S:.*]]: memref<1x2xf32>) {
// CHECK:         %[[FLAT:.*]] = memref.collapse_shape %[[Q]] {{\[\[}}0], [1, 2, 3]]
// CHECK-NOT:     scf.parallel
// CHECK:         scf.for %[[G:.*]] =
// CHECK:           %[[A:.*]] = vector.load %[[X]]{{.*}} vector<4xf32>
// CHECK:           %[[B:.*]] = vector.load %[[X]]{{.*}} vector<4xf32>
// CHECK-NOT:       vector.shuffle
// CHECK:           %[[MOST:.*]] = vector.reduction <maximumf>
// CHECK:           %[[SCALE:.*]] = arith.divf %[[MOST]]
// CHECK:           memref.store %[[SCALE]], %[[S]][%{{.*}}, %[[G]]]
// CHECK:           math.roundeven
// CHECK:           %[[I:.*]] = arith.fptosi %{{.*}} : vector<4xf32> to vector<4xi8>
// CHECK:           vector.store %[[I]], %[[FLAT]]
// CHECK:           vector.store %{{.*}}, %[[FLAT]]
// CHECK:         return
func.func private @one_row(%x: memref<1x16xf32>, %q: memref<1x2x2x4xi8>, %s: memref<1x2xf32>)
    attributes {buddy.quantize = {rotation = 1 : i64}} {
  return
}

// Eight columns are mixed: two strides within a vector, one between two; times 1/4, the greater part of 1/8.
// CHECK-LABEL: func.func private @mixed(
// CHECK:         scf.parallel
// CHECK:           scf.for
// CHECK:             vector.shuffle %[[V:.*]], %[[V]] [1, 0, 3, 2]
// CHECK:             vector.fma
// CHECK:             vector.shuffle %[[W:.*]], %[[W]] [2, 3, 0, 1]
// CHECK:             vector.fma
// CHECK:             arith.addf
// CHECK:             arith.subf
// CHECK:             arith.mulf %{{.*}}, %[[QUARTER:.*]] : vector<4xf32>
// CHECK:             arith.fptosi %{{.*}} : vector<4xf32> to vector<4xi16>
func.func private @mixed(%x: memref<?x16xf32>, %q: memref<?x2x2x4xi16>, %s: memref<?x2xf32>)
    attributes {buddy.quantize = {rotation = 8 : i64}} {
  return
}

// A group of the whole row is gone through twice.
// CHECK-LABEL: func.func private @long_group(
// CHECK:         %[[MOST:.*]] = scf.for {{.*}} iter_args
// CHECK:         vector.reduction <maximumf>, %[[MOST]]
// CHECK:         scf.for
// CHECK:           arith.fptosi
func.func private @long_group(%x: memref<?x96xf32>, %q: memref<?x1x24x4xi8>, %s: memref<?x1xf32>)
    attributes {buddy.quantize = {rotation = 1 : i64}} {
  return
}

// CHECK-LABEL: func.func private @another
// CHECK-NEXT:    return
func.func private @another(%x: memref<?x96xf32>) {
  return
}
}
