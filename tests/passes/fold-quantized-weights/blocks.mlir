// RUN: buddy-opt %s --fold-packed-weights --fold-quantized-weights --canonicalize | FileCheck %s

// Blocks of several groups, with 6-bit integers in two fields: all fields are read in place, each over the loops
// that it has. The activations' groups are (block, group of the block) too.

// CHECK-DAG: #[[A:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d3, d4, d5, d6, d7)>
// CHECK-DAG: #[[AS:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d3, d4)>
// CHECK-DAG: #[[LOW:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d1, d3, d4, d6, d2, d7)>
// CHECK-DAG: #[[HIGH:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d1, d3, d4, d2, d7)>
// CHECK-DAG: #[[FACTOR:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d1, d3, d4, d2)>
// CHECK-DAG: #[[SCALE:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d1, d3, d2)>
// CHECK-DAG: #[[C:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d1, d2)>
// CHECK-LABEL: func @product
// CHECK-SAME: (%[[AQ:.*]]: tensor<?x2x16x2x2x4xi16>, %[[ASCALE:.*]]: tensor<?x2x16xf32>,
// CHECK-SAME:  %[[L:.*]]: tensor<3x2x16x2x16x4xi8>, %[[H:.*]]: tensor<3x2x16x16x4xi8>,
// CHECK-SAME:  %[[F:.*]]: tensor<3x2x16x16xi8>, %[[D:.*]]: tensor<3x2x16xf16>
// CHECK: linalg.generic {indexing_maps = [#[[A]], #[[AS]], #[[LOW]], #[[HIGH]], #[[FACTOR]], #[[SCALE]], #[[C]]]
// CHECK-SAME: ins(%[[AQ]], %[[ASCALE]], %[[L]], %[[H]], %[[F]], %[[D]]
// CHECK-DAG: linalg.index 5
// CHECK-DAG: linalg.index 6
// CHECK-NOT: tensor<3x2x16x2x2x4x16xf32>
// CHECK-NOT: tensor<?x2x16x2x2x4xf32>

// CHECK-LABEL: func @row
// CHECK: scf.for
// CHECK-NOT: tensor<3x2x16x2x2x4x16xf32>
// CHECK: tensor.extract %{{.*}} : tensor<3x2x16x2x16x4xi8>
// CHECK: tensor.extract %{{.*}} : tensor<3x2x16x16x4xi8>
// CHECK: tensor.extract %{{.*}} : tensor<3x2x16x16xi8>
// CHECK: tensor.extract %{{.*}} : tensor<3x2x16xf16>
// CHECK-NOT: tensor<3x2x16x2x2x4x16xf32>
#a = affine_map<(m, b, s, h, q, r) -> (m, b, s, h, q, r)>
#as = affine_map<(m, b, s, h, q, r) -> (m, b, s)>
#low = affine_map<(p, b, s, h, q, r, j) -> (p, b, s, q, j, r)>
#high = affine_map<(p, b, s, h, q, r, j) -> (p, b, s, j, r)>
#factor = affine_map<(p, b, s, h, q, r, j) -> (p, b, s, j)>
#scale = affine_map<(p, b, s, h, q, r, j) -> (p, b, j)>
#w = affine_map<(p, b, s, h, q, r, j) -> (p, b, s, h, q, r, j)>
func.func @product(%aq: tensor<?x2x16x2x2x4xi16>, %as: tensor<?x2x16xf32>, %low: tensor<3x2x16x2x16x4xi8>,
    %high: tensor<3x2x16x16x4xi8>, %factor: tensor<3x2x16x16xi8>, %scale: tensor<3x2x16xf16>,
    %out: tensor<?x40xf32>) -> tensor<?x40xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %aq, %c0 : tensor<?x2x16x2x2x4xi16>
  %ae = tensor.empty(%m) : tensor<?x2x16x2x2x4xf32>
  %a = linalg.generic {indexing_maps = [#a, #as, #a],
                       iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%aq, %as : tensor<?x2x16x2x2x4xi16>, tensor<?x2x16xf32>) outs(%ae : tensor<?x2x16x2x2x4xf32>) {
    ^bb0(%v: i16, %s: f32, %o: f32):
      %f = arith.sitofp %v : i16 to f32
      %r = arith.mulf %f, %s : f32
      linalg.yield %r : f32
  } -> tensor<?x2x16x2x2x4xf32>
  %x = tensor.collapse_shape %a [[0], [1, 2, 3, 4, 5]] : tensor<?x2x16x2x2x4xf32> into tensor<?x512xf32>
  %four = arith.constant 4 : i8
  %fifteen = arith.constant 15 : i8
  %two = arith.constant 2 : i8
  %three = arith.constant 3 : i8
  %zero = arith.constant 32.0 : f32
  %we = tensor.empty() : tensor<3x2x16x2x2x4x16xf32>
  %wd = linalg.generic {indexing_maps = [#low, #high, #factor, #scale, #w], iterator_types =
      ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%low, %high, %factor, %scale : tensor<3x2x16x2x16x4xi8>, tensor<3x2x16x16x4xi8>, tensor<3x2x16x16xi8>,
          tensor<3x2x16xf16>) outs(%we : tensor<3x2x16x2x2x4x16xf32>) {
    ^bb0(%l: i8, %u: i8, %f: i8, %d: f16, %o: f32):
      %h = linalg.index 3 : index
      %h8 = arith.index_cast %h : index to i8
      %q = linalg.index 4 : index
      %q8 = arith.index_cast %q : index to i8
      %low_shift = arith.muli %h8, %four : i8
      %low_moved = arith.shrui %l, %low_shift : i8
      %nibble = arith.andi %low_moved, %fifteen : i8
      %first = arith.muli %h8, %two : i8
      %place = arith.addi %first, %q8 : i8
      %high_shift = arith.muli %place, %two : i8
      %high_moved = arith.shrui %u, %high_shift : i8
      %bits = arith.andi %high_moved, %three : i8
      %above = arith.shli %bits, %four : i8
      %integer = arith.ori %nibble, %above : i8
      %number = arith.uitofp %integer : i8 to f32
      %less = arith.subf %number, %zero : f32
      %df = arith.extf %d : f16 to f32
      %ff = arith.sitofp %f : i8 to f32
      %step = arith.mulf %df, %ff : f32
      %r = arith.mulf %less, %step : f32
      linalg.yield %r : f32
  } -> tensor<3x2x16x2x2x4x16xf32>
  %p = tensor.collapse_shape %wd [[0], [1, 2, 3, 4, 5], [6]] : tensor<3x2x16x2x2x4x16xf32> into tensor<3x512x16xf32>
  %e = tensor.empty() : tensor<40x512xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x512x16xf32> -> tensor<40x512xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<?x512xf32>, tensor<40x512xf32>)
      outs(%out : tensor<?x40xf32>) -> tensor<?x40xf32>
  return %y : tensor<?x40xf32>
}

func.func @row(%row: index, %low: tensor<3x2x16x2x16x4xi8>, %high: tensor<3x2x16x16x4xi8>,
    %factor: tensor<3x2x16x16xi8>, %scale: tensor<3x2x16xf16>, %out: tensor<512xf32>) -> tensor<512xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c512 = arith.constant 512 : index
  %four = arith.constant 4 : i8
  %fifteen = arith.constant 15 : i8
  %two = arith.constant 2 : i8
  %three = arith.constant 3 : i8
  %zero = arith.constant 32.0 : f32
  %we = tensor.empty() : tensor<3x2x16x2x2x4x16xf32>
  %wd = linalg.generic {indexing_maps = [#low, #high, #factor, #scale, #w], iterator_types =
      ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%low, %high, %factor, %scale : tensor<3x2x16x2x16x4xi8>, tensor<3x2x16x16x4xi8>, tensor<3x2x16x16xi8>,
          tensor<3x2x16xf16>) outs(%we : tensor<3x2x16x2x2x4x16xf32>) {
    ^bb0(%l: i8, %u: i8, %f: i8, %d: f16, %o: f32):
      %h = linalg.index 3 : index
      %h8 = arith.index_cast %h : index to i8
      %q = linalg.index 4 : index
      %q8 = arith.index_cast %q : index to i8
      %low_shift = arith.muli %h8, %four : i8
      %low_moved = arith.shrui %l, %low_shift : i8
      %nibble = arith.andi %low_moved, %fifteen : i8
      %first = arith.muli %h8, %two : i8
      %place = arith.addi %first, %q8 : i8
      %high_shift = arith.muli %place, %two : i8
      %high_moved = arith.shrui %u, %high_shift : i8
      %bits = arith.andi %high_moved, %three : i8
      %above = arith.shli %bits, %four : i8
      %integer = arith.ori %nibble, %above : i8
      %number = arith.uitofp %integer : i8 to f32
      %less = arith.subf %number, %zero : f32
      %df = arith.extf %d : f16 to f32
      %ff = arith.sitofp %f : i8 to f32
      %step = arith.mulf %df, %ff : f32
      %r = arith.mulf %less, %step : f32
      linalg.yield %r : f32
  } -> tensor<3x2x16x2x2x4x16xf32>
  %p = tensor.collapse_shape %wd [[0], [1, 2, 3, 4, 5], [6]] : tensor<3x2x16x2x2x4x16xf32> into tensor<3x512x16xf32>
  %e = tensor.empty() : tensor<40x512xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x512x16xf32> -> tensor<40x512xf32>
  %result = scf.for %k = %c0 to %c512 step %c1 iter_args(%made = %out) -> tensor<512xf32> {
    %value = tensor.extract %w[%row, %k] : tensor<40x512xf32>
    %next = tensor.insert %value into %made[%k] : tensor<512xf32>
    scf.yield %next : tensor<512xf32>
  }
  return %result : tensor<512xf32>
}
