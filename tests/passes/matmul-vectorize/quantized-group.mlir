// RUN: buddy-opt %s --matmul-vectorize --canonicalize --cse | FileCheck %s

// Two contractions with the same activations, of 16 bits: they are sorted into even and odd ones, and their sums taken,
// once for both, and one parallel loop goes over the panels of both.

#a = affine_map<(m, p, j, g, q, r) -> (m, g, q, r)>
#as = affine_map<(m, p, j, g, q, r) -> (m, g)>
#w = affine_map<(m, p, j, g, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, q, r) -> (m, p, j)>

// CHECK-LABEL: func @wide
// CHECK-COUNT-2: memref.alloc(%{{.*}}) {buddy.prepared = "{{evens|odds}}"} : memref<?x32xi16>
// CHECK-NOT: buddy.prepared = "{{evens|odds}}"
// CHECK: scf.parallel
// CHECK: vector.deinterleave
// CHECK: linalg.generic
// CHECK-NOT: linalg.generic
// CHECK: scf.parallel (%{{.*}}, %{{.*}}) =
// CHECK: llvm.call_intrinsic "llvm.x86.avx512.vpdpwssd.256"
// CHECK-NOT: scf.parallel
module attributes {buddy.target = {vector_bits = 256 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @wide(%a: memref<?x1x16x4xi16>, %as: memref<?x1xf32>, %w1: memref<3x1x16x16x4xi8>,
      %w2: memref<2x1x16x16x4xi8>, %s1: memref<3x1x16xf16>, %s2: memref<2x1x16xf16>, %m: index)
      -> (memref<?x3x16xf32>, memref<?x2x16xf32>) {
    %zero = arith.constant 0.0 : f32
    %c1 = memref.alloc(%m) : memref<?x3x16xf32>
    %c2 = memref.alloc(%m) : memref<?x2x16xf32>
    linalg.fill ins(%zero : f32) outs(%c1 : memref<?x3x16xf32>)
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w1, %s1 : memref<?x1x16x4xi16>, memref<?x1xf32>, memref<3x1x16x16x4xi8>, memref<3x1x16xf16>)
        outs(%c1 : memref<?x3x16xf32>) {
      ^bb0(%x: i16, %y: f32, %z: i8, %h: f16, %o: f32):
        %0 = arith.sitofp %x : i16 to f32
        %1 = arith.mulf %0, %y : f32
        %2 = arith.sitofp %z : i8 to f32
        %one = arith.constant 1.0 : f32
        %less = arith.subf %2, %one : f32
        %3 = arith.extf %h : f16 to f32
        %4 = arith.mulf %less, %3 : f32
        %5 = arith.mulf %1, %4 : f32
        %6 = arith.addf %o, %5 : f32
        linalg.yield %6 : f32
    }
    linalg.fill ins(%zero : f32) outs(%c2 : memref<?x2x16xf32>)
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w2, %s2 : memref<?x1x16x4xi16>, memref<?x1xf32>, memref<2x1x16x16x4xi8>, memref<2x1x16xf16>)
        outs(%c2 : memref<?x2x16xf32>) {
      ^bb0(%x: i16, %y: f32, %z: i8, %h: f16, %o: f32):
        %0 = arith.sitofp %x : i16 to f32
        %1 = arith.mulf %0, %y : f32
        %2 = arith.sitofp %z : i8 to f32
        %one = arith.constant 1.0 : f32
        %less = arith.subf %2, %one : f32
        %3 = arith.extf %h : f16 to f32
        %4 = arith.mulf %less, %3 : f32
        %5 = arith.mulf %1, %4 : f32
        %6 = arith.addf %o, %5 : f32
        linalg.yield %6 : f32
    }
    return %c1, %c2 : memref<?x3x16xf32>, memref<?x2x16xf32>
  }
}
