// RUN: buddy-opt %s --buddy-lower-to-loops | FileCheck %s
// RUN: buddy-opt %s --buddy-lower-to-loops=vectorize=false | FileCheck %s --check-prefix=SCALAR
// RUN: buddy-opt %s --buddy-lower-to-llvm | FileCheck %s --check-prefix=LLVM

// The cache of a layer function that is called in a loop: the new row is written straight into the caller's buffer.
// Nothing of the cache's size is allocated, and nothing is copied.

// CHECK-LABEL: func.func private @layer
// CHECK-SAME: %[[CACHE:[a-z0-9]*]]: memref<30x3x?x16xf32>
// CHECK-NOT: memref.alloc({{.*}}30x3x
// CHECK-NOT: memref.copy
// CHECK: %[[NEW:.*]] = memref.subview %[[CACHE]]
// CHECK: vector.store %{{.*}}, %[[NEW]]
// CHECK-NOT: memref.alloc({{.*}}30x3x
// CHECK: return
// CHECK-LABEL: func.func @decode
// CHECK-SAME: (%{{.*}}: memref<?xi8>, %[[X:.*]]: memref<1x64xf32>, %[[ALL:.*]]: memref<30x3x?x16xf32>, %{{.*}}: index) attributes
// CHECK-NOT: memref.alloc
// CHECK: scf.for
// CHECK-NEXT: func.call @layer(%{{.*}}, %{{.*}}, %[[X]], %[[ALL]], %{{.*}})
// CHECK-NEXT: }
// CHECK-NEXT: return

// SCALAR-NOT: vector<
// SCALAR-NOT: memref.copy

// LLVM: llvm.func @_mlir_ciface_decode
// LLVM-NOT: memref
// LLVM-NOT: unrealized_conversion_cast
module attributes {buddy.target = {vector_bits = 256 : i64, panel = 16 : i64, tile_rows = 6 : i64}} {
  func.func private @layer(%weights: memref<?xi8>, %layer: index, %x: tensor<1x64xf32>, %cache: tensor<30x3x?x16xf32>,
      %position: index) -> (tensor<1x64xf32>, tensor<30x3x?x16xf32>) {
    %c12288 = arith.constant 12288 : index
    %zero = arith.constant 0.0 : f32
    %offset = arith.muli %layer, %c12288 : index
    %view = memref.view %weights[%offset][] : memref<?xi8> to memref<3x64x16xf32>
    %packed = bufferization.to_tensor %view restrict : memref<3x64x16xf32> to tensor<3x64x16xf32>
    %we = tensor.empty() : tensor<48x64xf32>
    %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %we : tensor<3x64x16xf32> -> tensor<48x64xf32>
    %e = tensor.empty() : tensor<1x48xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1x48xf32>) -> tensor<1x48xf32>
    %k = linalg.matmul
        indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
        ins(%x, %w : tensor<1x64xf32>, tensor<48x64xf32>) outs(%z : tensor<1x48xf32>) -> tensor<1x48xf32>
    %split = tensor.expand_shape %k [[0], [1, 2]] output_shape [1, 3, 16] : tensor<1x48xf32> into tensor<1x3x16xf32>
    %te = tensor.empty() : tensor<3x1x16xf32>
    %t = linalg.transpose ins(%split : tensor<1x3x16xf32>) outs(%te : tensor<3x1x16xf32>) permutation = [1, 0, 2]
    %cache2 = tensor.insert_slice %t into %cache[%layer, 0, %position, 0] [1, 3, 1, 16] [1, 1, 1, 1]
        : tensor<3x1x16xf32> into tensor<30x3x?x16xf32>
    %c1 = arith.constant 1 : index
    %filled = arith.addi %position, %c1 : index
    %seen = tensor.extract_slice %cache2[%layer, 0, 0, 0] [1, 3, %filled, 16] [1, 1, 1, 1]
        : tensor<30x3x?x16xf32> to tensor<3x?x16xf32>
    %se = tensor.empty() : tensor<3x16xf32>
    %sz = linalg.fill ins(%zero : f32) outs(%se : tensor<3x16xf32>) -> tensor<3x16xf32>
    %s = linalg.reduce { arith.addf } ins(%seen : tensor<3x?x16xf32>) outs(%sz : tensor<3x16xf32>) dimensions = [1]
    %c0 = arith.constant 0 : index
    %v = tensor.extract %s[%c0, %c0] : tensor<3x16xf32>
    %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
        outs(%x : tensor<1x64xf32>) {
      ^bb0(%o: f32):
        %q = arith.addf %o, %v : f32
        linalg.yield %q : f32
    } -> tensor<1x64xf32>
    return %y, %cache2 : tensor<1x64xf32>, tensor<30x3x?x16xf32>
  }
  func.func @decode(%weights: memref<?xi8>, %x: tensor<1x64xf32> {bufferization.writable = true},
      %cache: tensor<30x3x?x16xf32> {bufferization.writable = true}, %position: index)
      -> (tensor<1x64xf32>, tensor<30x3x?x16xf32>) attributes {llvm.emit_c_interface} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c30 = arith.constant 30 : index
    %r:2 = scf.for %l = %c0 to %c30 step %c1 iter_args(%h = %x, %c = %cache)
        -> (tensor<1x64xf32>, tensor<30x3x?x16xf32>) {
      %n:2 = func.call @layer(%weights, %l, %h, %c, %position)
          : (memref<?xi8>, index, tensor<1x64xf32>, tensor<30x3x?x16xf32>, index)
          -> (tensor<1x64xf32>, tensor<30x3x?x16xf32>)
      scf.yield %n#0, %n#1 : tensor<1x64xf32>, tensor<30x3x?x16xf32>
    }
    return %r#0, %r#1 : tensor<1x64xf32>, tensor<30x3x?x16xf32>
  }
}
