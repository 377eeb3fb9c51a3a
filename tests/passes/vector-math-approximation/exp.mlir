// RUN: buddy-opt %s --vector-math-approximation | FileCheck %s

// CHECK-LABEL: func @vector
// CHECK-NOT: math.exp
// CHECK: math.roundeven
// CHECK-COUNT-8: vector.fma
// CHECK: arith.cmpf uno
func.func @vector(%x: vector<8xf32>) -> vector<8xf32> {
  %y = math.exp %x : vector<8xf32>
  return %y : vector<8xf32>
}

// Scalars and other types are left to libm.

// CHECK-LABEL: func @scalar
// CHECK: math.exp %{{.*}} : f32
// CHECK: math.exp %{{.*}} : vector<4xf64>
// CHECK: math.sin %{{.*}} : f32
func.func @scalar(%x: f32, %y: vector<4xf64>) -> (f32, vector<4xf64>, f32) {
  %a = math.exp %x : f32
  %b = math.exp %y : vector<4xf64>
  %c = math.sin %x : f32
  return %a, %b, %c : f32, vector<4xf64>, f32
}
