// RUN: buddy-opt %s --plan-memory | FileCheck %s

// What can have no place in the arena stays an allocation.

func.func private @use(memref<?x?xf32>)
func.func private @take(memref<8xf32>)

// Reached by a function that is no entry point.
// CHECK-LABEL: func.func private @shared()
// CHECK: memref.alloc
func.func private @shared() {
  %a = memref.alloc() : memref<8xf32>
  call @take(%a) : (memref<8xf32>) -> ()
  return
}

// CHECK-LABEL: func.func @other()
func.func @other() {
  call @shared() : () -> ()
  return
}

// CHECK-LABEL: func.func @run
func.func @run(%weights: memref<?xi8>, %ids: memref<1x?xi64>, %position: index) attributes {buddy.entry = "prefill"} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = memref.dim %ids, %c1 : memref<1x?xi64>
  // Quadratic, and dependent on something else.
  // CHECK: memref.alloc({{.*}}) : memref<?x?xf32>
  // CHECK: memref.alloc({{.*}}) : memref<?x?xf32>
  %square = memref.alloc(%n, %n) : memref<?x?xf32>
  call @use(%square) : (memref<?x?xf32>) -> ()
  %wide = memref.alloc(%c1, %position) : memref<?x?xf32>
  call @use(%wide) : (memref<?x?xf32>) -> ()
  call @shared() : () -> ()
  // One for each thread.
  // CHECK: scf.parallel
  // CHECK: memref.alloc() : memref<8xf32>
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %a = memref.alloc() : memref<8xf32>
    func.call @take(%a) : (memref<8xf32>) -> ()
  }
  return
}
