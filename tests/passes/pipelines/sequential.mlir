// RUN: buddy-opt %s --buddy-lower-to-loops=parallelize=false | FileCheck %s
// RUN: buddy-opt %s --buddy-lower-to-loops | FileCheck %s --check-prefix=PARALLEL

// A thread's own memory is allocated in each turn of a parallel loop; of a sequential one before the loop, or the stack
// would grow with every turn.

// CHECK-LABEL: func.func @sequential
// CHECK: memref.alloca
// CHECK: scf.for
// CHECK-NOT: memref.alloca

// PARALLEL-LABEL: func.func @sequential
// PARALLEL: scf.parallel
// PARALLEL: memref.alloca
#a = affine_map<(m, p, j, g, q, r) -> (m, g, q, r)>
#as = affine_map<(m, p, j, g, q, r) -> (m, g)>
#w = affine_map<(m, p, j, g, q, r) -> (p, g, q, j, r)>
#s = affine_map<(m, p, j, g, q, r) -> (p, g, j)>
#c = affine_map<(m, p, j, g, q, r) -> (m, p, j)>

module attributes {buddy.target = {vector_bits = 512 : i64, registers = 32 : i64, int8_dot = "avx512vnni"}} {
  func.func @sequential(%a: memref<?x2x16x4xi8>, %as: memref<?x2xf32>, %w: memref<3x2x16x16x4xi8>,
      %s: memref<3x2x16xf16>, %c: memref<?x3x16xf32>) {
    linalg.generic {indexing_maps = [#a, #as, #w, #s, #c],
        iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
        ins(%a, %as, %w, %s : memref<?x2x16x4xi8>, memref<?x2xf32>, memref<3x2x16x16x4xi8>, memref<3x2x16xf16>)
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
