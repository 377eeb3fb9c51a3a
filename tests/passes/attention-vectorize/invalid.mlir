// RUN: buddy-opt %s --attention-vectorize --split-input-file --verify-diagnostics

// expected-error @+1 {{attention function 'no_scale' has no f32 'scale' in its buddy.attention}}
func.func private @no_scale(%q: memref<1x4x1x8xf32>) attributes {buddy.attention = {}} {
  return
}

// -----

// expected-error @+1 {{attention function 'groups' has buffers whose sizes do not fit together}}
func.func private @groups(%q: memref<1x4x1x8xf32>, %k: memref<2x3x?x8xf32>, %v: memref<2x3x?x8xf32>,
    %layer: index, %position: index, %out: memref<1x1x4x8xf32>) attributes {buddy.attention = {scale = 0.25 : f32}} {
  return
}

// -----

// expected-error @+1 {{attention function 'few' must have the buffers q, k_cache, v_cache}}
func.func private @few(%q: memref<1x4x1x8xf32>) attributes {buddy.attention = {scale = 0.25 : f32}} {
  return
}
