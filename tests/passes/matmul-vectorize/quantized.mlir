// RUN: buddy-opt %s --matmul-vectorize --canonicalize --cse --split-input-file | FileCheck %s

// One row of activations in i8, weights in i8, AVX-512 VNNI: the weights become unsigned by a flipped bit, and the sums of
// a group begin with what that adds. Its integers are exact until the scales are applied.

#a = affine_map<(m, p, j, g, q, r) -> (m, g, q, r)>
#as = affine_map<(m, p, j, g, q, r) -> (m, g)>
#w = affine_map<(m, p, j, g, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, q, r) -> (m, p, j)>

// CHECK-LABEL: func @vnni
// CHECK-DAG: %[[FLIP:.*]] = arith.constant dense<-128> : vector<64xi8>
// CHECK: %[[BYTES:.*]] = memref.collapse_shape %{{.*}} : memref<3x2x16x16x4xi8, {{.*}}> into memref<3x2x1024xi8
// CHECK: %[[WORDS:.*]] = memref.view %{{.*}} : memref<128xi8> to memref<1x32xi32>
// CHECK: linalg.generic {{.*}}"reduction"
// CHECK: arith.muli %{{.*}}, %c-128_i32
// CHECK: scf.parallel
// CHECK: scf.for
// CHECK: memref.prefetch %[[BYTES]]
// CHECK: %[[LOADED:.*]] = vector.load %[[BYTES]]{{.*}} vector<64xi8>
// CHECK: %[[UNSIGNED:.*]] = arith.xori %[[LOADED]], %[[FLIP]]
// CHECK: %[[ROW:.*]] = memref.collapse_shape %[[WORDS]]
// CHECK: memref.load %[[ROW]]
// CHECK: llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.512"(%{{.*}}, %[[UNSIGNED]], %{{.*}})
// CHECK-COUNT-15: llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.512"
// CHECK-NOT: llvm.call_intrinsic
// CHECK: vector.load {{.*}} vector<16xf16>
// CHECK: arith.sitofp {{.*}} : vector<16xi32> to vector<16xf32>
// CHECK: vector.fma
// CHECK: vector.store
module attributes {buddy.target = {vector_bits = 512 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @vnni(%a: memref<1x2x16x4xi8>, %as: memref<1x2xf32>,
      %w: memref<3x2x16x16x4xi8, strided<[2112, 1056, 64, 4, 1]>>,
      %s: memref<3x2x16xf16, strided<[1056, 528, 1]>>, %c: memref<1x3x16xf32>) {
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w, %s : memref<1x2x16x4xi8>, memref<1x2xf32>,
            memref<3x2x16x16x4xi8, strided<[2112, 1056, 64, 4, 1]>>, memref<3x2x16xf16, strided<[1056, 528, 1]>>)
        outs(%c : memref<1x3x16xf32>) {
      ^bb0(%x: i8, %y: f32, %z: i8, %h: f16, %o: f32):
        %0 = arith.sitofp %x : i8 to f32
        %1 = arith.mulf %0, %y : f32
        %2 = arith.sitofp %z : i8 to f32
        %3 = arith.extf %h : f16 to f32
        %4 = arith.mulf %2, %3 : f32
        %5 = arith.mulf %1, %4 : f32
        %6 = arith.addf %o, %5 : f32
        linalg.yield %6 : f32
    }
    return
  }
}

// -----

// Nibbles less 8, AVX2: eight sums of pairs in i16, then one of pairs of those. The way in which a nibble is taken out
// does not matter; here it is computed in i32.

#a = affine_map<(m, p, j, g, h, q, r) -> (m, g, h, q, r)>
#as = affine_map<(m, p, j, g, h, q, r) -> (m, g)>
#w = affine_map<(m, p, j, g, h, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, h, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, h, q, r) -> (m, p, j)>

// CHECK-LABEL: func @nibbles
// CHECK: arith.muli %{{.*}}, %c-8_i32
// CHECK: scf.parallel
// CHECK: arith.andi {{.*}} : vector<32xi8>
// CHECK: arith.shrui {{.*}} : vector<32xi8>
// CHECK-COUNT-16: llvm.call_intrinsic "llvm.x86.avx2.pmadd.ub.sw"
// CHECK-COUNT-2: llvm.call_intrinsic "llvm.x86.avx2.pmadd.wd"
// CHECK-NOT: llvm.call_intrinsic
module attributes {buddy.target = {vector_bits = 256 : i64, registers = 16 : i64, int8_dot = "avx2"}} {
  func.func @nibbles(%a: memref<1x2x2x4x4xi8>, %as: memref<1x2xf32>,
      %w: memref<3x2x4x16x4xi8, strided<[576, 288, 64, 4, 1]>>,
      %s: memref<3x2x16xf16, strided<[288, 144, 1]>>, %c: memref<1x3x16xf32>) {
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w, %s : memref<1x2x2x4x4xi8>, memref<1x2xf32>,
            memref<3x2x4x16x4xi8, strided<[576, 288, 64, 4, 1]>>, memref<3x2x16xf16, strided<[288, 144, 1]>>)
        outs(%c : memref<1x3x16xf32>) {
      ^bb0(%x: i8, %y: f32, %z: i8, %t: f16, %o: f32):
        %c4 = arith.constant 4 : i32
        %c15 = arith.constant 15 : i32
        %c8 = arith.constant 8 : i32
        %0 = arith.sitofp %x : i8 to f32
        %1 = arith.mulf %0, %y : f32
        %h = linalg.index 4 : index
        %h32 = arith.index_cast %h : index to i32
        %bits = arith.muli %h32, %c4 : i32
        %byte = arith.extui %z : i8 to i32
        %moved = arith.shrui %byte, %bits : i32
        %nibble = arith.andi %moved, %c15 : i32
        %signed = arith.subi %nibble, %c8 : i32
        %2 = arith.sitofp %signed : i32 to f32
        %3 = arith.extf %t : f16 to f32
        %4 = arith.mulf %2, %3 : f32
        %5 = arith.mulf %1, %4 : f32
        %6 = arith.addf %o, %5 : f32
        linalg.yield %6 : f32
    }
    return
  }
}

// -----

// The high nibble is shifted by three bits: no format that is known, so it stays as it is.

#a = affine_map<(m, p, j, g, h, q, r) -> (m, g, h, q, r)>
#w = affine_map<(m, p, j, g, h, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, h, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, h, q, r) -> (m, p, j)>

// CHECK-LABEL: func @unknown
// CHECK: linalg.generic
// CHECK-NOT: scf.parallel
func.func @unknown(%a: memref<1x2x2x4x4xf32>, %w: memref<3x2x4x16x4xi8>, %s: memref<3x2x16xf16>,
    %c: memref<1x3x16xf32>) {
  linalg.generic {indexing_maps = [#a, #w, #s, #c],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction", "reduction"]}
      ins(%a, %w, %s : memref<1x2x2x4x4xf32>, memref<3x2x4x16x4xi8>, memref<3x2x16xf16>)
      outs(%c : memref<1x3x16xf32>) {
    ^bb0(%x: f32, %z: i8, %t: f16, %o: f32):
      %c3 = arith.constant 3 : i8
      %c15 = arith.constant 15 : i8
      %h = linalg.index 4 : index
      %h8 = arith.index_cast %h : index to i8
      %bits = arith.muli %h8, %c3 : i8
      %moved = arith.shrui %z, %bits : i8
      %nibble = arith.andi %moved, %c15 : i8
      %2 = arith.uitofp %nibble : i8 to f32
      %3 = arith.extf %t : f16 to f32
      %4 = arith.mulf %2, %3 : f32
      %5 = arith.mulf %x, %4 : f32
      %6 = arith.addf %o, %5 : f32
      linalg.yield %6 : f32
  }
  return
}
