// RUN: buddy-opt %s --matmul-vectorize --canonicalize --cse --split-input-file | FileCheck %s

// Nibbles less 8 against many rows of activations in i16, AVX-512 VNNI. With four full tiles or more a panel is unpacked
// once: its integers, less 8, into i16, 2 groups x 4 quads x 4 factors of 64 bytes, and its scales into f32. The tiles of
// 24 rows read those; the sums of a group begin with zero then.

#a = affine_map<(m, p, j, g, h, q, r) -> (m, g, h, q, r)>
#as = affine_map<(m, p, j, g, h, q, r) -> (m, g)>
#w = affine_map<(m, p, j, g, h, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, h, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, h, q, r) -> (m, p, j)>

// CHECK-LABEL: func @unpacked
// CHECK-DAG: %[[ZERO:.*]] = arith.constant dense<8> : vector<32xi16>
// CHECK: scf.parallel
// CHECK: %[[SCRATCH:.*]] = memref.alloca() {alignment = 64 : i64} : memref<2176xi8>
// CHECK: scf.if %{{.*}} {
// CHECK-DAG: %[[QUADS:.*]] = memref.view %[[SCRATCH]][%{{.*}}][] : memref<2176xi8> to memref<8x256xi8>
// CHECK-DAG: %[[SCALES:.*]] = memref.view %[[SCRATCH]][%{{.*}}][] : memref<2176xi8> to memref<2x16xf32>
// CHECK: arith.extf {{.*}} : vector<16xf16> to vector<16xf32>
// CHECK: vector.store %{{.*}}, %[[SCALES]]
// CHECK-COUNT-4: arith.subi %{{.*}}, %[[ZERO]]
// CHECK: vector.store %{{.*}}, %[[QUADS]]
// CHECK: scf.for
// CHECK: scf.for {{.*}} iter_args
// CHECK-NOT: arith.shrui {{.*}} : vector
// CHECK: %[[LOADED:.*]] = vector.load %[[QUADS]]
// CHECK: vector.bitcast %[[LOADED]] : vector<64xi8> to vector<32xi16>
// CHECK: llvm.call_intrinsic "llvm.x86.avx512.vpdpwssd.512"
// CHECK: vector.load %[[SCALES]]
// CHECK: } else {
// CHECK-NOT: %[[QUADS]]
// CHECK: arith.shrui {{.*}} : vector<32xi16>
// CHECK: llvm.call_intrinsic "llvm.x86.avx512.vpdpwssd.512"
module attributes {buddy.target = {vector_bits = 512 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @unpacked(%a: memref<?x2x2x4x4xi16>, %as: memref<?x2xf32>,
      %w: memref<3x2x4x16x4xi8, strided<[576, 288, 64, 4, 1]>>,
      %s: memref<3x2x16xf16, strided<[288, 144, 1]>>, %c: memref<?x3x16xf32>) {
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w, %s : memref<?x2x2x4x4xi16>, memref<?x2xf32>,
            memref<3x2x4x16x4xi8, strided<[576, 288, 64, 4, 1]>>, memref<3x2x16xf16, strided<[288, 144, 1]>>)
        outs(%c : memref<?x3x16xf32>) {
      ^bb0(%x: i16, %y: f32, %z: i8, %t: f16, %o: f32):
        %c4 = arith.constant 4 : i32
        %c15 = arith.constant 15 : i32
        %c8 = arith.constant 8 : i32
        %0 = arith.sitofp %x : i16 to f32
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

// Too few rows for four tiles of 24, and rows so long that a panel would take too much of a thread's stack: no panel is
// unpacked.

#a = affine_map<(m, p, j, g, q, r) -> (m, g, q, r)>
#as = affine_map<(m, p, j, g, q, r) -> (m, g)>
#w = affine_map<(m, p, j, g, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, q, r) -> (m, p, j)>

// CHECK-LABEL: func @few
// CHECK-NOT: memref.alloca
// CHECK-LABEL: func @long
// CHECK-NOT: memref.alloca
module attributes {buddy.target = {vector_bits = 512 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @few(%a: memref<95x2x16x4xi8>, %as: memref<95x2xf32>, %w: memref<3x2x16x16x4xi8>, %s: memref<3x2x16xf16>,
      %c: memref<95x3x16xf32>) {
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w, %s : memref<95x2x16x4xi8>, memref<95x2xf32>, memref<3x2x16x16x4xi8>, memref<3x2x16xf16>)
        outs(%c : memref<95x3x16xf32>) {
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

  func.func @long(%a: memref<?x256x16x4xi8>, %as: memref<?x256xf32>, %w: memref<3x256x16x16x4xi8>,
      %s: memref<3x256x16xf16>, %c: memref<?x3x16xf32>) {
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w, %s : memref<?x256x16x4xi8>, memref<?x256xf32>, memref<3x256x16x16x4xi8>, memref<3x256x16xf16>)
        outs(%c : memref<?x3x16xf32>) {
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
