// RUN: buddy-opt %s --buddy-lower-to-loops | FileCheck %s --check-prefix=ON
// RUN: buddy-opt %s --buddy-lower-to-loops=parallelize=false | FileCheck %s --check-prefix=SERIAL
// RUN: buddy-opt %s --buddy-lower-to-loops="vectorize=false attention=false" | FileCheck %s --check-prefix=SCALAR
// RUN: buddy-opt %s --buddy-lower-to-loops=pack=false | FileCheck %s --check-prefix=UNPACKED
// RUN: buddy-opt %s --buddy-lower-to-llvm | FileCheck %s --check-prefix=OPENMP

// ON: scf.parallel
// ON: vector.fma
// ON-NOT: memref<40x24xf32>
// SERIAL-NOT: scf.parallel
// SCALAR-NOT: vector<
// UNPACKED: memref.alloc() {{.*}} : memref<3x16x24xf32>
// UNPACKED: memref.dealloc
// OPENMP: omp.parallel
// OPENMP: omp.wsloop
func.func @f(%x: tensor<?x24xf32>, %packed: tensor<3x24x16xf32>, %out: tensor<?x40xf32> {bufferization.writable = true})
    -> tensor<?x40xf32> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x24xf32>
  %e = tensor.empty() : tensor<40x24xf32>
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x24x16xf32> -> tensor<40x24xf32>
  %o = tensor.empty(%m) : tensor<?x40xf32>
  %z = linalg.fill ins(%zero : f32) outs(%o : tensor<?x40xf32>) -> tensor<?x40xf32>
  %y = linalg.matmul
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %w : tensor<?x24xf32>, tensor<40x24xf32>) outs(%z : tensor<?x40xf32>) -> tensor<?x40xf32>
  %r = bufferization.materialize_in_destination %y in %out : (tensor<?x40xf32>, tensor<?x40xf32>) -> tensor<?x40xf32>
  return %r : tensor<?x40xf32>
}
