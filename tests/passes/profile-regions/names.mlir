// RUN: buddy-opt %s --profile-regions | FileCheck %s
// RUN: buddy-opt %s --profile-regions --convert-scf-to-openmp --canonicalize --convert-to-llvm | FileCheck %s --check-prefix=LLVM

// CHECK: llvm.mlir.global external constant @run_profile_names("model.layers.*.mlp/mul + model.layers.*/silu\0Amodel.embed/gather\094096\09128\0A\00")
// CHECK-DAG: func.func private @buddy_profile_begin(!llvm.ptr, i64)
// CHECK-DAG: func.func private @buddy_profile_end(!llvm.ptr, i64)
// LLVM: llvm.mlir.global external constant @run_profile_names

// CHECK-LABEL: func.func private @layer
// CHECK: %[[NAMES:.*]] = llvm.mlir.addressof @run_profile_names : !llvm.ptr
// CHECK-NEXT: %[[ID:.*]] = arith.constant 0 : i64
// CHECK-NEXT: call @buddy_profile_begin(%[[NAMES]], %[[ID]])
// CHECK-NEXT: scf.parallel
// CHECK: scf.for
// CHECK: scf.reduce
// CHECK: call @buddy_profile_end(%[[NAMES]], %[[ID]])
// CHECK-NEXT: return
func.func private @layer(%x: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    scf.for %j = %c0 to %n step %c1 {
      memref.store %zero, %x[%j] : memref<?xf32>
    } loc("inner")
  } loc(fused["model.layers.0.mlp/mul"("f.py":1:2), "model.layers.0/silu"])
  return
}

// The loop over layers is no region. A name carries the work that its location tells.
// CHECK-LABEL: func.func @run
// CHECK: %[[ONE:.*]] = arith.constant 1 : i64
// CHECK-NEXT: call @buddy_profile_begin(%{{.*}}, %[[ONE]])
// CHECK-NEXT: scf.for
// CHECK: call @buddy_profile_end(%{{.*}}, %[[ONE]])
// CHECK-NEXT: scf.for
// CHECK-NEXT: func.call @layer
// CHECK-NEXT: }
// CHECK-NEXT: return
func.func @run(%x: memref<?xf32>, %n: index) attributes {buddy.entry = "prefill"} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  scf.for %j = %c0 to %n step %c1 {
    memref.store %zero, %x[%j] : memref<?xf32>
  } loc(fused<array<i64: 4096, 128>>["model.embed/gather"])
  scf.for %j = %c0 to %n step %c1 {
    func.call @layer(%x, %n) : (memref<?xf32>, index) -> ()
  } loc("layers")
  return
}
