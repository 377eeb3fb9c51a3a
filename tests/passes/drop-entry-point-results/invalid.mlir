// RUN: buddy-opt %s --drop-entry-point-results --split-input-file --verify-diagnostics

func.func @fresh() -> memref<4xf32> {
  %b = memref.alloc() : memref<4xf32>
  // expected-error @+1 {{result 0 of public function 'fresh' is not one of its buffer arguments; write it into an argument with bufferization.materialize_in_destination}}
  return %b : memref<4xf32>
}

// -----

func.func @exchanged(%a: memref<4xf32>, %b: memref<4xf32>, %n: index) -> memref<4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %a, %y = %b) -> (memref<4xf32>, memref<4xf32>) {
    scf.yield %y, %x : memref<4xf32>, memref<4xf32>
  }
  // expected-error @+1 {{result 0 of public function 'exchanged' is not one of its buffer arguments}}
  return %r#0 : memref<4xf32>
}

// -----

// expected-error @+1 {{public function 'callee' returns buffers and is called in its own module; make it private}}
func.func @callee(%a: memref<4xf32>) -> memref<4xf32> {
  return %a : memref<4xf32>
}
func.func private @caller(%a: memref<4xf32>) {
  %r = call @callee(%a) : (memref<4xf32>) -> memref<4xf32>
  return
}
