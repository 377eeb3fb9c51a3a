// RUN: buddy-opt %s --prefetch-caches | FileCheck %s

func.func private @attention(%q: memref<1x4x1x32xf32>, %k: memref<2x2x?x32xf16>, %v: memref<2x2x?x32xf16>,
    %layer: index, %position: index, %out: memref<1x1x4x32xf32>) attributes {buddy.decodes} {
  return
}

// Rows of 64 bytes are one line; what the position is computed from moves in front of the loop.
// CHECK-LABEL: func.func @layer
// CHECK: %[[POSITION:.*]] = arith.index_cast
// CHECK: scf.parallel (%[[I:.*]]) =
// CHECK: arith.minui %[[POSITION]]
// CHECK: scf.for
// CHECK: memref.prefetch %arg2[%arg4, %[[HEAD:.*]], %[[PLACE:.*]], %{{.*}}], read, locality<2>
// CHECK: memref.prefetch %arg3[%arg4, %[[HEAD]], %[[PLACE]], %{{.*}}], read, locality<2>
// CHECK-NOT: memref.prefetch
// CHECK: memref.store
func.func @layer(%q: memref<1x4x1x32xf32>, %x: memref<8xf32>, %k: memref<2x2x?x32xf16>, %v: memref<2x2x?x32xf16>,
    %layer: index, %position: i64, %out: memref<1x1x4x32xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 8 : index
  %value = arith.constant 1.0 : f32
  scf.parallel (%i) = (%zero) to (%count) step (%one) {
    memref.store %value, %x[%i] : memref<8xf32>
  }
  %index = arith.index_cast %position : i64 to index
  call @attention(%q, %k, %v, %layer, %index, %out) : (memref<1x4x1x32xf32>, memref<2x2x?x32xf16>,
    memref<2x2x?x32xf16>, index, index, memref<1x1x4x32xf32>) -> ()
  return
}

// The position is known behind the loop only.
// CHECK-LABEL: func.func @late
// CHECK-NOT: memref.prefetch
// CHECK: return
func.func @late(%q: memref<1x4x1x32xf32>, %x: memref<8xindex>, %k: memref<2x2x?x32xf16>, %v: memref<2x2x?x32xf16>,
    %layer: index, %out: memref<1x1x4x32xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 8 : index
  scf.parallel (%i) = (%zero) to (%count) step (%one) {
    memref.store %i, %x[%i] : memref<8xindex>
  }
  %position = memref.load %x[%one] : memref<8xindex>
  call @attention(%q, %k, %v, %layer, %position, %out) : (memref<1x4x1x32xf32>, memref<2x2x?x32xf16>,
    memref<2x2x?x32xf16>, index, index, memref<1x1x4x32xf32>) -> ()
  return
}

// CHECK-LABEL: func.func @nothing_in_front
// CHECK-NOT: memref.prefetch
func.func @nothing_in_front(%q: memref<1x4x1x32xf32>, %k: memref<2x2x?x32xf16>, %v: memref<2x2x?x32xf16>,
    %layer: index, %position: index, %out: memref<1x1x4x32xf32>) {
  call @attention(%q, %k, %v, %layer, %position, %out) : (memref<1x4x1x32xf32>, memref<2x2x?x32xf16>,
    memref<2x2x?x32xf16>, index, index, memref<1x1x4x32xf32>) -> ()
  return
}
