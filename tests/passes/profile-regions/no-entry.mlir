// RUN: buddy-opt %s --profile-regions | FileCheck %s

// CHECK-NOT: buddy_profile
func.func @f(%x: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  scf.for %j = %c0 to %n step %c1 {
    memref.store %zero, %x[%j] : memref<?xf32>
  }
  return
}
