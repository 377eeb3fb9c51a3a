// RUN: buddy-opt %s --deallocate-local-buffers --verify-diagnostics

func.func @leaves() -> memref<2x2xf32> {
  // expected-error @+1 {{this buffer leaves the block that allocates it, so that nothing would free it; write into a buffer of the surrounding block instead}}
  %b = memref.alloc() : memref<4xf32>
  %v = memref.expand_shape %b [[0, 1]] output_shape [2, 2] : memref<4xf32> into memref<2x2xf32>
  return %v : memref<2x2xf32>
}
