// RUN: buddy-opt %s --plan-memory --split-input-file --verify-diagnostics

// expected-error @+1 {{entry point 'run' must take the ids, a buffer of rank 2, as its second argument}}
func.func @run(%weights: memref<?xi8>) attributes {buddy.entry = "prefill"} {
  return
}

// -----

func.func @run_arena_size() {
  return
}
// expected-error @+1 {{the name 'run_arena_size' is taken}}
func.func @run(%weights: memref<?xi8>, %ids: memref<1x?xi64>) attributes {buddy.entry = "prefill"} {
  return
}
