// RUN: buddy-opt %s --split-input-file --expand-half-conversions | FileCheck %s

// CHECK-LABEL: func @vectors
// CHECK-NOT: arith.extf
// CHECK-NOT: arith.truncf
// CHECK: arith.bitcast %{{.*}} : vector<8xf16> to vector<8xi16>
// CHECK: arith.extui %{{.*}} : vector<8xi16> to vector<8xi32>
// CHECK: arith.subf {{.*}} : vector<8xf32>
// CHECK: arith.addf {{.*}} : vector<8xf32>
// CHECK: arith.trunci {{.*}} : vector<8xi32> to vector<8xi16>
// CHECK: arith.bitcast {{.*}} : vector<8xi16> to vector<8xf16>
module attributes {buddy.target = {converts_half = 0 : i64}} {
  func.func @vectors(%x: vector<8xf16>) -> vector<8xf16> {
    %wide = arith.extf %x : vector<8xf16> to vector<8xf32>
    %sum = arith.mulf %wide, %wide : vector<8xf32>
    %result = arith.truncf %sum : vector<8xf32> to vector<8xf16>
    return %result : vector<8xf16>
  }

  // CHECK-LABEL: func @scalars
  // CHECK-NOT: f16 to f32
  // CHECK: arith.extf {{.*}} : f32 to f64
  // CHECK: arith.trunci {{.*}} : i32 to i16
  func.func @scalars(%x: f16, %y: f32) -> (f64, f16) {
    %wide = arith.extf %x : f16 to f64
    %narrow = arith.truncf %y : f32 to f16
    return %wide, %narrow : f64, f16
  }

  // Other types, other roundings, and two roundings at once.

  // CHECK-LABEL: func @others
  // CHECK: arith.extf {{.*}} : bf16 to f32
  // CHECK: arith.truncf {{.*}} downward : f32 to f16
  // CHECK: arith.truncf {{.*}} : f64 to f16
  func.func @others(%x: bf16, %y: f32, %z: f64) -> (f32, f16, f16) {
    %a = arith.extf %x : bf16 to f32
    %b = arith.truncf %y downward : f32 to f16
    %c = arith.truncf %z : f64 to f16
    return %a, %b, %c : f32, f16, f16
  }
}

// -----

// A target with instructions for it, as one that says nothing is.

// CHECK-LABEL: func @native
// CHECK: arith.extf
// CHECK: arith.truncf
func.func @native(%x: vector<8xf16>) -> vector<8xf16> {
  %wide = arith.extf %x : vector<8xf16> to vector<8xf32>
  %sum = arith.mulf %wide, %wide : vector<8xf32>
  %result = arith.truncf %sum : vector<8xf32> to vector<8xf16>
  return %result : vector<8xf16>
}
