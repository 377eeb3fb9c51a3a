// RUN: buddy-opt %s --verify-model-contract=max-constant-bytes=4 --split-input-file --verify-diagnostics

// expected-error @below {{the module lacks the string attribute 'buddy.abi'}}
// expected-error @below {{the module lacks the dictionary attribute 'buddy.target'}}
// expected-error @below {{the module has no entry point: a public function with the attribute 'buddy.entry'}}
module {
}

// -----

// expected-error @below {{buddy.target lacks the string 'cpu'}}
// expected-error @below {{buddy.target lacks the positive i64 'panel'}}
module attributes {buddy.abi = "", buddy.target = {
    name = "t", triple = "t", features = "", vector_bits = 256 : i64, registers = 16 : i64, panel = 0 : i64,
    tile_rows = 6 : i64}} {
  // expected-error @below {{public function 'main' needs the attribute 'buddy.entry' with the value prefill, decode or score}}
  func.func @main() {
    return
  }
}

// -----

#target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 256 : i64, registers = 16 : i64,
           panel = 16 : i64, tile_rows = 6 : i64}
module attributes {buddy.abi = "", buddy.target = #target} {
  // expected-error @below {{entry point 'few' needs the arguments weights, ids, position, k_cache, v_cache and logits, but has 0}}
  // expected-error @below {{entry point 'few' lacks 'llvm.emit_c_interface'}}
  func.func @few() attributes {buddy.entry = "decode"} {
    return
  }

  // expected-error @below {{argument 1 (ids) of entry point 'types' is 'tensor<1x?xi64>', but tensor<1x1xi64> is needed}}
  // expected-error @below {{argument 2 (position) of entry point 'types' is 'index', but i64 is needed}}
  // expected-error @below {{argument 3 (k_cache) of entry point 'types' is 'tensor<2x2x9x8xf32>', but tensor<LxHkvx?xDxE> with E f32, f16 or bf16, or tensor<LxHkvx?x(D+4)xi8> is needed}}
  // expected-error @below {{argument 4 (v_cache) of entry point 'types' is 'tensor<2x2x?x8xf32>', but the type of k_cache is needed}}
  // expected-error @below {{argument 5 (logits) of entry point 'types' is 'tensor<1x?x40xf32>', but tensor<1x1xVxf32> is needed}}
  // expected-error @below {{argument 4 of entry point 'types' lacks bufferization.writable = true}}
  // expected-error @below {{entry point 'types' must return its last three arguments}}
  func.func @types(%weights: memref<?xi8>, %ids: tensor<1x?xi64>, %position: index,
      %k: tensor<2x2x9x8xf32> {bufferization.writable = true}, %v: tensor<2x2x?x8xf32>,
      %logits: tensor<1x?x40xf32> {bufferization.writable = true})
      attributes {llvm.emit_c_interface, buddy.entry = "decode"} {
    return
  }

  // expected-error @below {{function 'buffer' takes 'memref<4xf32>', but the only buffer is the weights' base, memref<?xi8>}}
  // expected-error @below {{private function 'buffer' returns a buffer}}
  func.func private @buffer(%b: memref<4xf32>) -> memref<4xf32> {
    return %b : memref<4xf32>
  }

  // expected-error @below {{result 1 of private function 'destinations', 'tensor<4xf32>', has no argument of that type to be written into}}
  func.func private @destinations(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    return %a, %a : tensor<4xf32>, tensor<4xf32>
  }

  // expected-error @below {{layer function 'layer' must take the weights' base, memref<?xi8>, and the layer, index, before its tensors}}
  func.func private @layer(%a: tensor<4xf32>) -> tensor<4xf32> attributes {buddy.layer} {
    return %a : tensor<4xf32>
  }

  // expected-error @below {{buddy.attention of 'attention' lacks the f32 'scale'}}
  // expected-error @below {{attention function 'attention' must have the type}}
  func.func private @attention(%q: tensor<1x4x1x8xf32>) attributes {buddy.attention = {scale = 1 : i64}} {
    return
  }

  // expected-error @below {{buddy.quantize of 'quantize' lacks the positive integer 'rotation'}}
  // expected-error @below {{quantising function 'quantize' must have the type}}
  func.func private @quantize(%x: tensor<?x32xf32>, %integers: tensor<?x3x4x4xi8>, %scales: tensor<?x3xf32>)
      -> (tensor<?x3x4x4xi8>, tensor<?x3xf32>) attributes {buddy.quantize = {}} {
    return %integers, %scales : tensor<?x3x4x4xi8>, tensor<?x3xf32>
  }

  // expected-error @below {{function 'external' has no body}}
  func.func private @external()
}

// -----

#target = {name = "t", triple = "t", cpu = "t", features = "", vector_bits = 256 : i64, registers = 16 : i64,
           panel = 16 : i64, tile_rows = 6 : i64}
// expected-error @below {{the module has no entry point}}
module attributes {buddy.abi = "", buddy.target = #target} {
  func.func private @operations(%weights: memref<?xi8>, %o: index) {
    %c0 = arith.constant 0 : index
    %view = memref.view %weights[%o][] : memref<?xi8> to memref<4xf32>
    // expected-error @below {{a weight must be read with 'restrict'}}
    %a = bufferization.to_tensor %view : memref<4xf32> to tensor<4xf32>
    // expected-error @below {{a weight may not be 'writable'}}
    %b = bufferization.to_tensor %view restrict writable : memref<4xf32> to tensor<4xf32>
    // expected-error @below {{a weight's view may only be read through bufferization.to_tensor}}
    // expected-error @below {{'memref.load' may not stand in a model's module}}
    %c = memref.load %view[%c0] : memref<4xf32>
    // expected-error @below {{a weight's view must be of a static type, but this is 'memref<?xf32>'}}
    %d = memref.view %weights[%o][%o] : memref<?xi8> to memref<?xf32>
    // expected-error @below {{'memref.alloc' may not stand in a model's module}}
    %e = memref.alloc() : memref<4xf32>
    // expected-error @below {{bufferization.to_tensor may only read a memref.view of the weights}}
    %f = bufferization.to_tensor %e restrict : memref<4xf32> to tensor<4xf32>
    // expected-error @below {{memref.reinterpret_cast may only read a memref.view of the weights}}
    %r1 = memref.reinterpret_cast %e to offset: [0], sizes: [2], strides: [2] : memref<4xf32> to memref<2xf32, strided<[2]>>
    // expected-error @below {{the fields of a weight end at element 5 of a view of 4}}
    %r2 = memref.reinterpret_cast %view to offset: [0], sizes: [2], strides: [5] : memref<4xf32> to memref<2xf32, strided<[5]>>
    // expected-error @below {{the fields of a weight must be of a static type, but this is}}
    %r3 = memref.reinterpret_cast %view to offset: [0], sizes: [%c0], strides: [2] : memref<4xf32> to memref<?xf32, strided<[2]>>
    // expected-error @below {{a constant of 8 bytes stands in the module; more than 4 belong into the weights file}}
    %g = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
    %h = arith.constant dense<1.0> : tensor<2000xf32>
    return
  }
}
