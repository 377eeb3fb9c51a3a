// RUN: buddy-opt %s --pass-pipeline="builtin.module(func.func(forward-destinations))" | FileCheck %s

// CHECK-LABEL: func.func @entry
// CHECK-NOT: memref.alloc
// CHECK: %[[FLAT:.*]] = memref.collapse_shape %arg0 {{\[\[}}0], [1, 2]]
// CHECK: %[[PANELS:.*]] = memref.expand_shape %[[FLAT]] {{\[\[}}0], [1, 2]] output_shape [1, 4, 8]
// CHECK: linalg.fill {{.*}} outs(%[[PANELS]]
// CHECK-NOT: memref.copy
// CHECK: return
func.func @entry(%out: memref<1x1x32xf32>) attributes {buddy.entry = "decode"} {
  %one = arith.constant 1.0 : f32
  %alloc = memref.alloc() : memref<1x4x8xf32>
  linalg.fill ins(%one : f32) outs(%alloc : memref<1x4x8xf32>)
  %flat = memref.collapse_shape %alloc [[0], [1, 2]] : memref<1x4x8xf32> into memref<1x32xf32>
  %view = memref.expand_shape %flat [[0], [1, 2]] output_shape [1, 1, 32] : memref<1x32xf32> into memref<1x1x32xf32>
  memref.copy %view, %out : memref<1x1x32xf32> to memref<1x1x32xf32>
  return
}

// Padding is cut off.
// CHECK-LABEL: func.func @padded
// CHECK: memref.copy
func.func @padded(%out: memref<1x30xf32>) attributes {buddy.entry = "decode"} {
  %one = arith.constant 1.0 : f32
  %alloc = memref.alloc() : memref<1x4x8xf32>
  linalg.fill ins(%one : f32) outs(%alloc : memref<1x4x8xf32>)
  %flat = memref.collapse_shape %alloc [[0], [1, 2]] : memref<1x4x8xf32> into memref<1x32xf32>
  %view = memref.subview %flat[0, 0] [1, 30] [1, 1] : memref<1x32xf32> to memref<1x30xf32, strided<[32, 1]>>
  memref.copy %view, %out : memref<1x30xf32, strided<[32, 1]>> to memref<1x30xf32>
  return
}

// The buffer changes after it was copied.
// CHECK-LABEL: func.func @reused
// CHECK: memref.copy
func.func @reused(%out: memref<4x8xf32>) -> f32 attributes {buddy.entry = "decode"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %alloc = memref.alloc() : memref<4x8xf32>
  linalg.fill ins(%one : f32) outs(%alloc : memref<4x8xf32>)
  memref.copy %alloc, %out : memref<4x8xf32> to memref<4x8xf32>
  %two = arith.constant 2.0 : f32
  memref.store %two, %alloc[%zero, %zero] : memref<4x8xf32>
  %read = memref.load %alloc[%zero, %zero] : memref<4x8xf32>
  return %read : f32
}

// What the argument held before is read.
// CHECK-LABEL: func.func @read
// CHECK: memref.copy
func.func @read(%out: memref<4x8xf32>) -> f32 attributes {buddy.entry = "decode"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %alloc = memref.alloc() : memref<4x8xf32>
  linalg.fill ins(%one : f32) outs(%alloc : memref<4x8xf32>)
  %before = memref.load %out[%zero, %zero] : memref<4x8xf32>
  memref.copy %alloc, %out : memref<4x8xf32> to memref<4x8xf32>
  return %before : f32
}

// Other functions may be called with buffers that overlap.
// CHECK-LABEL: func.func @no_entry
// CHECK: memref.copy
func.func @no_entry(%out: memref<4x8xf32>) {
  %one = arith.constant 1.0 : f32
  %alloc = memref.alloc() : memref<4x8xf32>
  linalg.fill ins(%one : f32) outs(%alloc : memref<4x8xf32>)
  memref.copy %alloc, %out : memref<4x8xf32> to memref<4x8xf32>
  return
}
