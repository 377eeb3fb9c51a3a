// RUN: buddy-opt %s --verify-model-contract | FileCheck %s

// The smallest model that keeps the contract passes and is left as it is.

// CHECK-LABEL: func private @attention
// CHECK: linalg.transpose
// CHECK-LABEL: func private @layer
// CHECK-LABEL: func @toy_decode
module attributes {
    buddy.abi = "0123",
    buddy.target = {name = "x86-64-v3", triple = "x86_64-unknown-linux-gnu", cpu = "x86-64-v3", features = "",
                    vector_bits = 256 : i64, registers = 16 : i64, panel = 16 : i64, tile_rows = 6 : i64}} {
  func.func private @attention(%q: tensor<1x4x1x8xf32>, %k: tensor<2x2x?x8xf32>, %v: tensor<2x2x?x8xf32>,
      %layer: index, %position: index, %out: tensor<1x1x4x8xf32>) -> tensor<1x1x4x8xf32>
      attributes {buddy.attention = {scale = 0.25 : f32}} {
    %t = linalg.transpose ins(%q : tensor<1x4x1x8xf32>) outs(%out : tensor<1x1x4x8xf32>) permutation = [0, 2, 1, 3]
    return %t : tensor<1x1x4x8xf32>
  }
  func.func private @quantize(%x: tensor<?x32xf32>, %integers: tensor<?x2x4x4xi8>, %scales: tensor<?x2xf32>)
      -> (tensor<?x2x4x4xi8>, tensor<?x2xf32>) attributes {buddy.quantize = {rotation = 16 : i64}} {
    return %integers, %scales : tensor<?x2x4x4xi8>, tensor<?x2xf32>
  }
  func.func private @layer(%weights: memref<?xi8>, %layer: index, %h: tensor<1x1x16xf32>) -> tensor<1x1x16xf32>
      attributes {buddy.layer} {
    %view = memref.view %weights[%layer][] : memref<?xi8> to memref<1x16x16xf32>
    %packed = bufferization.to_tensor %view restrict : memref<1x16x16xf32> to tensor<1x16x16xf32>
    %e = tensor.empty() : tensor<16x16xf32>
    %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<1x16x16xf32> -> tensor<16x16xf32>
    %bytes = memref.view %weights[%layer][] : memref<?xi8> to memref<200xi8>
    %fields = memref.reinterpret_cast %bytes to offset: [0], sizes: [2, 8], strides: [100, 1]
        : memref<200xi8> to memref<2x8xi8, strided<[100, 1]>>
    %integers = bufferization.to_tensor %fields restrict : memref<2x8xi8, strided<[100, 1]>> to tensor<2x8xi8>
    %r = bufferization.materialize_in_destination %h in %h : (tensor<1x1x16xf32>, tensor<1x1x16xf32>) -> tensor<1x1x16xf32>
    return %r : tensor<1x1x16xf32>
  }
  func.func @toy_decode(%weights: memref<?xi8>, %ids: tensor<1x1xi64>, %position: i64,
      %k: tensor<2x2x?x8xf32> {bufferization.writable = true}, %v: tensor<2x2x?x8xf32> {bufferization.writable = true},
      %logits: tensor<1x1x40xf32> {bufferization.writable = true})
      -> (tensor<2x2x?x8xf32>, tensor<2x2x?x8xf32>, tensor<1x1x40xf32>)
      attributes {llvm.emit_c_interface, buddy.entry = "decode"} {
    return %k, %v, %logits : tensor<2x2x?x8xf32>, tensor<2x2x?x8xf32>, tensor<1x1x40xf32>
  }
}
