// RUN: buddy-opt %s --matmul-vectorize --canonicalize --cse --split-input-file | FileCheck %s

// Integers of 5 bits in blocks of 8 groups: the fifth bits of a group are one vector, and a shift and a mask of it give
// what a quad's nibbles lack. Scales and minima are halves of the block times factors of the group; minima are taken
// off by sums of activations that are negated.

#a = affine_map<(m, p, j, b, s, h, q, r) -> (m, b, s, h, q, r)>
#as = affine_map<(m, p, j, b, s, h, q, r) -> (m, b, s)>
#low = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, s, q, j, r)>
#high = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, s, j, r)>
#f = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, s, j)>
#d = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, j)>
#c = affine_map<(m, p, j, b, s, h, q, r) -> (m, p, j)>

// CHECK-LABEL: func @five_bits
// CHECK-DAG: %[[FIFTH:.*]] = arith.constant dense<16> : vector<64xi8>
// CHECK-DAG: memref.collapse_shape %{{.*}} : memref<3x2x8x4x16x4xi8, {{.*}}> into memref<3x2x8x256xi8
// CHECK-DAG: %[[HIGH:.*]] = memref.collapse_shape %{{.*}} : memref<3x2x8x16x4xi8, {{.*}}> into memref<3x2x8x64xi8
// CHECK-DAG: memref.collapse_shape %{{.*}} : memref<1x2x8xf32> into memref<1x16xf32>
// CHECK: arith.subi %{{.*}} : i32
// CHECK: scf.parallel
// CHECK: vector.load %[[HIGH]]{{.*}} vector<64xi8>
// CHECK: arith.andi %{{.*}}, %[[FIFTH]]
// CHECK: arith.ori {{.*}} : vector<64xi8>
// CHECK-COUNT-8: llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.512"
// CHECK-NOT: llvm.call_intrinsic
// CHECK: vector.load {{.*}} vector<16xf16>
// CHECK: vector.load {{.*}} vector<16xi8>
// CHECK: arith.extui {{.*}} : vector<16xi8> to vector<16xi32>
// CHECK: arith.mulf {{.*}} : vector<16xf32>
// CHECK-COUNT-2: vector.fma
module attributes {buddy.target = {vector_bits = 512 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @five_bits(%a: memref<1x2x8x2x4x4xi8>, %as: memref<1x2x8xf32>,
      %low: memref<3x2x8x4x16x4xi8, strided<[5760, 2880, 352, 64, 4, 1]>>,
      %high: memref<3x2x8x16x4xi8, strided<[5760, 2880, 352, 4, 1]>>,
      %f: memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>, %t: memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>,
      %d: memref<3x2x16xf16, strided<[2880, 1440, 1]>>, %m: memref<3x2x16xf16, strided<[2880, 1440, 1]>>,
      %c: memref<1x3x16xf32>) {
    %four = arith.constant 4 : i8
    %fifteen = arith.constant 15 : i8
    %one = arith.constant 1 : i8
    linalg.generic {indexing_maps = [#a, #as, #low, #high, #f, #f, #d, #d, #c], iterator_types = ["parallel",
        "parallel", "parallel", "reduction", "reduction", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %low, %high, %f, %t, %d, %m : memref<1x2x8x2x4x4xi8>, memref<1x2x8xf32>,
            memref<3x2x8x4x16x4xi8, strided<[5760, 2880, 352, 64, 4, 1]>>,
            memref<3x2x8x16x4xi8, strided<[5760, 2880, 352, 4, 1]>>,
            memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>, memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>,
            memref<3x2x16xf16, strided<[2880, 1440, 1]>>, memref<3x2x16xf16, strided<[2880, 1440, 1]>>)
        outs(%c : memref<1x3x16xf32>) {
      ^bb0(%x: i8, %y: f32, %l: i8, %u: i8, %s: i8, %n: i8, %e: f16, %g: f16, %o: f32):
        %xf = arith.sitofp %x : i8 to f32
        %xs = arith.mulf %xf, %y : f32
        %h = linalg.index 5 : index
        %h8 = arith.index_cast %h : index to i8
        %q = linalg.index 6 : index
        %q8 = arith.index_cast %q : index to i8
        %ls = arith.muli %h8, %four : i8
        %lm = arith.shrui %l, %ls : i8
        %nibble = arith.andi %lm, %fifteen : i8
        %first = arith.muli %h8, %four : i8
        %place = arith.addi %first, %q8 : i8
        %um = arith.shrui %u, %place : i8
        %bit = arith.andi %um, %one : i8
        %above = arith.shli %bit, %four : i8
        %integer = arith.ori %nibble, %above : i8
        %number = arith.uitofp %integer : i8 to f32
        %ef = arith.extf %e : f16 to f32
        %sf = arith.uitofp %s : i8 to f32
        %step = arith.mulf %ef, %sf : f32
        %scaled = arith.mulf %number, %step : f32
        %gf = arith.extf %g : f16 to f32
        %nf = arith.uitofp %n : i8 to f32
        %low_end = arith.mulf %gf, %nf : f32
        %w = arith.subf %scaled, %low_end : f32
        %product = arith.mulf %xs, %w : f32
        %sum = arith.addf %o, %product : f32
        linalg.yield %sum : f32
    }
    return
  }
}

// -----

// The fifth bits of the two halves stand in turns: no format that is known, so it stays as it is.

#a = affine_map<(m, p, j, b, s, h, q, r) -> (m, b, s, h, q, r)>
#as = affine_map<(m, p, j, b, s, h, q, r) -> (m, b, s)>
#low = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, s, q, j, r)>
#high = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, s, j, r)>
#f = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, s, j)>
#d = affine_map<(m, p, j, b, s, h, q, r) -> (p, b, j)>
#c = affine_map<(m, p, j, b, s, h, q, r) -> (m, p, j)>

// CHECK-LABEL: func @other_places
// CHECK: linalg.generic
// CHECK-NOT: scf.parallel
module attributes {buddy.target = {vector_bits = 512 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @other_places(%a: memref<1x2x8x2x4x4xi8>, %as: memref<1x2x8xf32>,
      %low: memref<3x2x8x4x16x4xi8, strided<[5760, 2880, 352, 64, 4, 1]>>,
      %high: memref<3x2x8x16x4xi8, strided<[5760, 2880, 352, 4, 1]>>,
      %f: memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>, %t: memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>,
      %d: memref<3x2x16xf16, strided<[2880, 1440, 1]>>, %m: memref<3x2x16xf16, strided<[2880, 1440, 1]>>,
      %c: memref<1x3x16xf32>) {
    %four = arith.constant 4 : i8
    %fifteen = arith.constant 15 : i8
    %one = arith.constant 1 : i8
    linalg.generic {indexing_maps = [#a, #as, #low, #high, #f, #f, #d, #d, #c], iterator_types = ["parallel",
        "parallel", "parallel", "reduction", "reduction", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %low, %high, %f, %t, %d, %m : memref<1x2x8x2x4x4xi8>, memref<1x2x8xf32>,
            memref<3x2x8x4x16x4xi8, strided<[5760, 2880, 352, 64, 4, 1]>>,
            memref<3x2x8x16x4xi8, strided<[5760, 2880, 352, 4, 1]>>,
            memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>, memref<3x2x8x16xi8, strided<[5760, 2880, 352, 1]>>,
            memref<3x2x16xf16, strided<[2880, 1440, 1]>>, memref<3x2x16xf16, strided<[2880, 1440, 1]>>)
        outs(%c : memref<1x3x16xf32>) {
      ^bb0(%x: i8, %y: f32, %l: i8, %u: i8, %s: i8, %n: i8, %e: f16, %g: f16, %o: f32):
        %xf = arith.sitofp %x : i8 to f32
        %xs = arith.mulf %xf, %y : f32
        %h = linalg.index 5 : index
        %h8 = arith.index_cast %h : index to i8
        %q = linalg.index 6 : index
        %q8 = arith.index_cast %q : index to i8
        %ls = arith.muli %h8, %four : i8
        %lm = arith.shrui %l, %ls : i8
        %nibble = arith.andi %lm, %fifteen : i8
        %twice = arith.addi %q8, %q8 : i8
        %place = arith.addi %twice, %h8 : i8
        %um = arith.shrui %u, %place : i8
        %bit = arith.andi %um, %one : i8
        %above = arith.shli %bit, %four : i8
        %integer = arith.ori %nibble, %above : i8
        %number = arith.uitofp %integer : i8 to f32
        %ef = arith.extf %e : f16 to f32
        %sf = arith.uitofp %s : i8 to f32
        %step = arith.mulf %ef, %sf : f32
        %scaled = arith.mulf %number, %step : f32
        %gf = arith.extf %g : f16 to f32
        %nf = arith.uitofp %n : i8 to f32
        %low_end = arith.mulf %gf, %nf : f32
        %w = arith.subf %scaled, %low_end : f32
        %product = arith.mulf %xs, %w : f32
        %sum = arith.addf %o, %product : f32
        linalg.yield %sum : f32
    }
    return
  }
}
