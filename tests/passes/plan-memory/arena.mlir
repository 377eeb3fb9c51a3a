// RUN: buddy-opt %s --plan-memory --canonicalize | FileCheck %s
// RUN: buddy-opt %s --plan-memory=place=false --canonicalize | FileCheck %s --check-prefix=OFF

func.func private @use(memref<?x16xf32>, memref<?x16xf32>)
func.func private @take(memref<10xf32>)

// The callee's frame: 64 bytes for each token, and 64 bytes.
// CHECK-LABEL: func.func private @layer
// CHECK-SAME: (%[[X:.*]]: memref<?x16xf32>, %[[FIXED:.*]]: memref<?xi8>, %[[GROWING:.*]]: memref<?xi8>, %[[T:.*]]: index)
// CHECK-DAG: memref.view %[[GROWING]][%c0][%{{.*}}] : memref<?xi8> to memref<?x16xf32>
// CHECK-DAG: memref.view %[[FIXED]][%c0][] : memref<?xi8> to memref<10xf32>
// CHECK-NOT: memref.alloc
func.func private @layer(%x: memref<?x16xf32>) {
  %c0 = arith.constant 0 : index
  %n = memref.dim %x, %c0 : memref<?x16xf32>
  %a = memref.alloc(%n) : memref<?x16xf32>
  call @use(%x, %a) : (memref<?x16xf32>, memref<?x16xf32>) -> ()
  %s = memref.alloc() : memref<10xf32>
  call @take(%s) : (memref<10xf32>) -> ()
  return
}

// %h lives across the loop, %t in front of it, so that the call's frame lies where %t was.
// CHECK-LABEL: func.func @run
// CHECK-SAME: %{{[a-z0-9]*}}: memref<?xi8>, %[[IDS:[a-z0-9]*]]: memref<1x?xi64>, %[[ARENA:[a-z0-9]*]]: memref<?xi8>)
// CHECK: %[[TOKENS:.*]] = memref.dim %[[IDS]], %c1
// CHECK: %[[GROWING:.*]] = memref.view %[[ARENA]][%c64][%{{.*}}] : memref<?xi8> to memref<?xi8>
// CHECK: %[[H:.*]] = memref.view %[[GROWING]][%c0][%{{.*}}] : memref<?xi8> to memref<?x16xf32>
// CHECK: %[[AT:.*]] = arith.muli %[[TOKENS]], %c64
// CHECK: memref.view %[[GROWING]][%[[AT]]][%{{.*}}] : memref<?xi8> to memref<?x16xf32>
// CHECK: scf.for
// CHECK: %[[F64:.*]] = memref.view %[[ARENA]][%c0][] : memref<?xi8> to memref<64xi8>
// CHECK: %[[F:.*]] = memref.cast %[[F64]]
// CHECK: %[[G:.*]] = memref.view %[[GROWING]][%{{.*}}][%{{.*}}] : memref<?xi8> to memref<?xi8>
// CHECK: call @layer(%[[H]], %[[F]], %[[G]], %[[TOKENS]])
// CHECK-NOT: memref.alloc
// CHECK-LABEL: func.func @run_arena_size(
// CHECK-SAME: %[[N:.*]]: i64) -> i64
// CHECK-SAME: llvm.emit_c_interface
// CHECK: %[[P:.*]] = arith.muli %[[N]], %c128
// CHECK: %[[B:.*]] = arith.addi %[[P]], %c64
// CHECK: return %[[B]]

// OFF-LABEL: func.func @run
// OFF-SAME: %{{.*}}: memref<?xi8>)
// OFF: memref.alloc
// OFF-LABEL: func.func @run_arena_size
// OFF: return %c0
func.func @run(%weights: memref<?xi8>, %ids: memref<1x?xi64>) attributes {buddy.entry = "prefill"} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c30 = arith.constant 30 : index
  %n = memref.dim %ids, %c1 : memref<1x?xi64>
  %h = memref.alloc(%n) : memref<?x16xf32>
  %t = memref.alloc(%n) : memref<?x16xf32>
  call @use(%h, %t) : (memref<?x16xf32>, memref<?x16xf32>) -> ()
  scf.for %i = %c0 to %c30 step %c1 {
    func.call @layer(%h) : (memref<?x16xf32>) -> ()
  }
  return
}
