// RUN: buddy-opt %s --deallocate-local-buffers | FileCheck %s

// CHECK-LABEL: func @in_loop
// CHECK: %[[OUTER:.*]] = memref.alloc() : memref<4xf32>
// CHECK: scf.for
// CHECK: %[[INNER:.*]] = memref.alloc() : memref<8xf32>
// CHECK: memref.dealloc %[[INNER]]
// CHECK-NEXT: }
// CHECK: memref.dealloc %[[OUTER]]
// CHECK-NEXT: return
func.func @in_loop(%n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %outer = memref.alloc() : memref<4xf32>
  scf.for %i = %c0 to %n step %c1 {
    %inner = memref.alloc() : memref<8xf32>
    %f = memref.load %inner[%c0] : memref<8xf32>
    memref.store %f, %outer[%c0] : memref<4xf32>
  }
  return
}

// One that is freed already is left alone.

// CHECK-LABEL: func @freed
// CHECK-COUNT-1: memref.dealloc
// CHECK-NOT: memref.dealloc
// CHECK: return
func.func @freed() {
  %b = memref.alloc() : memref<4xf32>
  memref.dealloc %b : memref<4xf32>
  return
}
