// RUN: buddy-opt %s --drop-entry-point-results | FileCheck %s

// CHECK-LABEL: func @argument
// CHECK-SAME: (%{{.*}}: memref<4xf32>, %{{.*}}: index) -> index
// CHECK: return %{{.*}} : index
func.func @argument(%cache: memref<4xf32>, %i: index) -> (memref<4xf32>, index) {
  return %cache, %i : memref<4xf32>, index
}

// A loop that hands its buffer on, and views that change nothing.

// CHECK-LABEL: func @carried
// CHECK-NOT: return %
// CHECK: return
func.func @carried(%cache: memref<4x2xf32>, %n: index) -> memref<4x2xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %flat = memref.collapse_shape %cache [[0, 1]] : memref<4x2xf32> into memref<8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%b = %flat) -> (memref<8xf32>) {
    scf.yield %b : memref<8xf32>
  }
  %back = memref.expand_shape %r [[0, 1]] output_shape [4, 2] : memref<8xf32> into memref<4x2xf32>
  return %back : memref<4x2xf32>
}

// CHECK-LABEL: func private @kept
// CHECK-SAME: -> memref<4xf32>
func.func private @kept(%cache: memref<4xf32>) -> memref<4xf32> {
  return %cache : memref<4xf32>
}
