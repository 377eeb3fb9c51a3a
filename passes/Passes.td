//===- Passes.td - Every pass of buddy-gen --------------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_PASSES
#define BUDDY_PASSES

include "mlir/Pass/PassBase.td"

//===----------------------------------------------------------------------===//
// Tensor level
//===----------------------------------------------------------------------===//

def VerifyModelContract : Pass<"verify-model-contract", "ModuleOp"> {
  let summary = "Checks the contract between the importer and the passes";
  let description = [{
    Checks what docs/architecture.md promises of a module that the importer wrote: the module's attributes, the
    dialects in use, the entry points' signatures, that weights are only read through `memref.view` and
    `bufferization.to_tensor ... restrict`, that private functions are in destination-passing style, the signature of
    attention functions, and that no large constant stands in the module. Each violation is one error.
  }];
  let options = [
    Option<"maxConstantBytes", "max-constant-bytes", "int64_t", /*default=*/"4096",
           "Size of the largest constant that may stand in a module">
  ];
}

def ExpandHalfConversions : Pass<"expand-half-conversions", "ModuleOp"> {
  let summary = "Expands conversions between f16 and f32 where the target has no instructions for them";
  let description = [{
    A target whose `buddy.target` has `converts_half = 0` gets `arith.extf` from f16 and `arith.truncf` from f32 to f16
    as arithmetic on integers, for scalars and for vectors. Otherwise they would become a call for each element, of
    functions (`__extendhfsf2`, `__truncsfhf2`) that not every compiler's library has. The results are the same but for
    the bits of a NaN.

    ```mlir
    %y = arith.extf %x : vector<8xf16> to vector<8xf32>
    ```
    becomes
    ```mlir
    %bits = arith.bitcast %x : vector<8xf16> to vector<8xi16>
    %wide = arith.extui %bits : vector<8xi16> to vector<8xi32>
    ...
    %y = arith.bitcast %result : vector<8xi32> to vector<8xf32>
    ```
  }];
  let dependentDialects = ["arith::ArithDialect"];
}

def FoldDynamicBroadcast : Pass<"fold-dynamic-broadcast", "func::FuncOp"> {
  let summary = "Drops run-time broadcasts of dimensions that the contract says are equal";
  let description = [{
    The lowering of TOSA guards every dynamic dimension of an elementwise op by a test for 1, because TOSA would
    broadcast it. In a model two dynamic dimensions that meet are the same sequence length, so that the test is idle,
    and it would stand in the way of fusion and of bufferisation in place.

    ```mlir
    %is_one = arith.cmpi eq, %dim, %c1 : index
    %y = scf.if %is_one -> (tensor<1x?xf32>) {
      %broadcast = linalg.generic ... ins(%x : tensor<1x?xf32>) ...   // maps the dimension to 0
      scf.yield %broadcast : tensor<1x?xf32>
    } else {
      scf.yield %x : tensor<1x?xf32>
    }
    ```
    becomes `%x`.
  }];
}

def FoldPackedWeights : Pass<"fold-packed-weights", "func::FuncOp"> {
  let summary = "Reads packed weights in place instead of unpacking them";
  let description = [{
    A weight stands in the file in panels, `w[n, k] = packed[n / R, k, n % R]`, and in the module as a `linalg.unpack`
    of it. A contraction with an unpacked weight becomes one with the panels:

      C[m, n] = sum_k A[m, k] * W[n, k]    ->    C'[m, p, j] = sum_k A[m, k] * packed[p, k, j]

    where C is C' with (p, j) collapsed and cut to N columns. Reshapes by unit dimensions and transpositions between
    the unpack and the contraction are looked through, so that `linalg.matmul` with any indexing maps and
    `linalg.batch_matmul` with a unit batch (from `tosa.matmul`) are all served. A read of single elements (the row
    gather of an embedding) becomes

      tensor.extract %w[n, k]    ->    tensor.extract %packed[n / R, k, n % R]

    Contractions with the same A are placed side by side, for `matmul-vectorize`.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect", "linalg::LinalgDialect",
                           "tensor::TensorDialect"];
}

def FoldQuantizedWeights : Pass<"fold-quantized-weights", "func::FuncOp"> {
  let summary = "Reads quantised weights in place instead of dequantising them";
  let description = [{
    A narrow weight stands in the module as a `linalg.generic` that widens it, often with a `tensor.collapse_shape`
    that joins the groups of a row. A contraction that `fold-packed-weights` made takes the body of that op in, and
    those of dequantised activations likewise. With k = (g, r), a scale for each group g:

      W[p, k, j] = float(q[p, g, j, r]) * s[p, g, j],  A[m, k] = float(aq[m, g, r]) * as[m, g]
      C[m, p, j] += A[m, k] * W[p, k, j]
    becomes one op over (m, p, j, g, r):
      C[m, p, j] += (float(aq[m, g, r]) * as[m, g]) * (float(q[p, g, j, r]) * s[p, g, j])

    which `matmul-vectorize` turns into sums of integers. The read of one element (the row gather of an embedding)
    becomes reads of the elements that it is computed from. What computes the activations' integers goes through rows
    and groups in one loop, and through a group in one; magnitudes are compared as integers. The meaning of a module
    does not change.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect", "linalg::LinalgDialect",
                           "math::MathDialect", "memref::MemRefDialect", "tensor::TensorDialect"];
}

def DecomposeComposites : Pass<"decompose-composites", "func::FuncOp"> {
  let summary = "Decomposes tensor ops that bufferisation or the lowering to loops does not know";
  let description = [{
    `linalg.softmax` becomes a row maximum, an exponential, a row sum and a division; `tensor.concat` a chain of
    `tensor.insert_slice`; a `linalg.unpack` that `fold-packed-weights` left becomes a transposition.
  }];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "math::MathDialect",
                           "tensor::TensorDialect"];
}

def DropRegionBarriers : Pass<"drop-region-barriers", "ModuleOp"> {
  let summary = "Lets threads wait once at the end of a parallel region";
  let description = [{
    A loop that is the last thing in its parallel region needs no barrier of its own: the region ends when all threads
    are done. Loops with reductions keep theirs.

    ```mlir
    omp.parallel {
      omp.wsloop { ... }
      omp.terminator
    }
    ```
    becomes
    ```mlir
    omp.parallel {
      omp.wsloop nowait { ... }
      omp.terminator
    }
    ```
  }];
}

def ElementwiseFusion : Pass<"elementwise-fusion", "func::FuncOp"> {
  let summary = "Fuses chains of elementwise ops, and elementwise ops into reductions";
  let description = [{
    Upstream's patterns with a rule of what pays: nothing is computed more than once per element, except where the
    loops that repeat it are innermost ones, which `generic-vectorize` hoists it out of (the reciprocal root of a
    norm), or where it is a few cheap instructions.
  }];
  let dependentDialects = ["affine::AffineDialect", "bufferization::BufferizationDialect", "linalg::LinalgDialect"];
}

def UnshareDestinations : Pass<"unshare-destinations", "func::FuncOp"> {
  let summary = "Gives every op a destination of its own";
  let description = [{
    CSE merges equal `tensor.empty` and `linalg.fill` ops. Bufferisation would then have to copy the shared buffer for
    every op but the last that writes into it. One op for each use costs nothing. A value that is materialised in
    several destinations is copied for each but the first. Must run after the last CSE on tensors.

    ```mlir
    %zero = linalg.fill ins(%c0) outs(%empty) -> tensor<4xf32>
    %a = linalg.generic ... outs(%zero)
    %b = linalg.generic ... outs(%zero)
    ```
    becomes
    ```mlir
    %zero_a = linalg.fill ins(%c0) outs(%empty_a) -> tensor<4xf32>
    %a = linalg.generic ... outs(%zero_a)
    %zero_b = linalg.fill ins(%c0) outs(%empty_b) -> tensor<4xf32>
    %b = linalg.generic ... outs(%zero_b)
    ```
  }];
}

def WidenBooleans : Pass<"widen-booleans", "ModuleOp"> {
  let summary = "Stores booleans as bytes";
  let description = [{
    A tensor of i1 has no lowering as a buffer. It becomes a tensor of i8 that holds 0 or 1; the bodies of structured
    ops narrow the elements they read and widen those they write. Must run before bufferisation.

    ```mlir
    %m = linalg.generic ins(%x : tensor<4xf32>) outs(%e : tensor<4xi1>) { ... linalg.yield %c : i1 }
    ```
    becomes
    ```mlir
    %m = linalg.generic ins(%x : tensor<4xf32>) outs(%e : tensor<4xi8>) {
      ... %b = arith.extui %c : i1 to i8
      linalg.yield %b : i8 }
    ```
  }];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "tensor::TensorDialect"];
}

//===----------------------------------------------------------------------===//
// Buffer level
//===----------------------------------------------------------------------===//

def DropEntryPointResults : Pass<"drop-entry-point-results", "ModuleOp"> {
  let summary = "Drops the results of public functions, which are equivalent to arguments";
  let description = [{
    Upstream's `drop-equivalent-buffer-results` leaves public functions alone. The entry points write into the
    caller's buffers, so their results carry nothing:

    ```mlir
    func.func @decode(%cache: memref<4xf32>) -> memref<4xf32> {
      return %cache : memref<4xf32>
    }
    ```
    becomes a function without results. A result that is not one of the arguments is an error.
  }];
}

def AttentionVectorize : Pass<"attention-vectorize", "func::FuncOp"> {
  let summary = "Replaces the body of an attention function by a blocked kernel with an online softmax";
  let description = [{
    For functions with `buddy.attention`, whose signature docs/architecture.md states. The body, which is the
    reference, is not read. For each block of the cache's positions, with m the running maximum and l the running sum
    of a query row:

      s[j] = scale * q . k[j],  m' = max(m, max_j s[j]),  a = exp(m - m'),  p[j] = exp(s[j] - m')
      l' = a * l + sum_j p[j],  out' = a * out + sum_j p[j] * v[j]

    and at the end out / l. With one query (decode) the kernel runs in parallel over KV heads and ranges of positions,
    whose results are joined at the end, and the query heads of a group share the loads of K and V; attention to a short
    cache stays on the calling thread. With more queries it runs in parallel over KV heads and blocks of queries, up to
    each block's causal limit.
  }];
  let dependentDialects = ["arith::ArithDialect", "math::MathDialect", "memref::MemRefDialect", "scf::SCFDialect",
                           "vector::VectorDialect"];
}

def QuantizeVectorize : Pass<"quantize-vectorize", "func::FuncOp"> {
  let summary = "Replaces the body of a function that rounds activations to integers by vector code";
  let description = [{
    For functions with `buddy.quantize`, whose signature docs/architecture.md states. The body, which is the reference,
    is not read. A group of a row is loaded into registers once: there its columns are mixed by the butterflies of a
    Hadamard matrix, if `rotation` is not 1, its largest magnitude is found, and it is rounded and stored. Rows run in
    parallel.
  }];
  let dependentDialects = ["arith::ArithDialect", "math::MathDialect", "memref::MemRefDialect", "scf::SCFDialect",
                           "vector::VectorDialect"];
}

def MatmulVectorize : Pass<"matmul-vectorize", "func::FuncOp"> {
  let summary = "Turns contractions with packed weights into parallel loops over register tiles";
  let description = [{
    Serves what `fold-packed-weights` makes, after bufferisation: C[m, p, j] += A[m, k] * W[p, k, j]. A tile of
    `tile_rows` rows and one panel stays in registers over all of K; rows that are left over are taken in tiles of
    powers of two. One row (decode) uses several independent accumulators and reads the panel as one contiguous stream.
    A `linalg.fill` of C with zero just before is taken in. Contractions with the same A that stand side by side (queries,
    keys and values; gate and up) run in one parallel loop over the panels of all.

    With quantised weights (what `fold-quantized-weights` makes, recognised by its body) a tile sums the products of a
    group and then applies the group's scales. If the activations are integers too, these are sums of integers, exact,
    by the target's `int8_dot`: pmaddwd and pmaddubsw (ssse3, avx2, avx512bw), vpdpbusd and vpdpwssd (avx512vnni), sdot
    (neon_dotprod), or plain vector code (none). All forms give the same integers.

    Where four full tiles or more go over a panel of integers, it is unpacked first, once, into memory on the thread's
    stack (up to 256 KiB): factors as the products take them, scales and minima in f32. Fewer tiles, single rows and
    longer panels take the weights out of their blocks each time.
  }];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "LLVM::LLVMDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "vector::VectorDialect"];
  let options = [
    Option<"group", "group", "bool", /*default=*/"true", "Run contractions with the same input in one parallel loop">
  ];
}

def ForwardDestinations : Pass<"forward-destinations", "func::FuncOp"> {
  let summary = "Lets an entry point compute in the caller's buffer what it would copy there";
  let description = [{
    Bufferisation computes in place where a value and its destination have the same shape. Where a reshape stands between
    them, as between the panels of a linear layer and the logits, it allocates a buffer and copies. Here that buffer
    becomes a view of the destination: an argument of an entry point with no other use, of static shape and without
    strides.

    ```mlir
    %alloc = memref.alloc() : memref<1x4x8xf32>
    linalg.generic ... outs(%alloc)
    %view = memref.collapse_shape %alloc [[0], [1, 2]]
    memref.copy %view, %out : memref<1x32xf32> to memref<1x32xf32>
    ```
    becomes
    ```mlir
    %view = memref.expand_shape %out [[0], [1, 2]] output_shape [1, 4, 8]
    linalg.generic ... outs(%view)
    ```
  }];
  let dependentDialects = ["memref::MemRefDialect"];
}

def GenericVectorize : Pass<"generic-vectorize", "func::FuncOp"> {
  let summary = "Turns linalg ops on buffers into loops with vectorised innermost loops";
  let description = [{
    Any linalg op with buffer semantics, and `memref.copy`, becomes a loop nest. The innermost loop runs over a
    dimension in which every operand is either contiguous or constant, in vectors, with a tail of narrower vectors or
    scalars; what does not depend on it stays scalar and outside of it. A reduction over it uses four vector
    accumulators. Where there is no such dimension, or the body holds an op that has no good vector form (a gather,
    a sine), the loops are scalar. Outer parallel loops of large or unknown extent become `scf.parallel`.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect", "linalg::LinalgDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "vector::VectorDialect"];
  let options = [
    Option<"vectorize", "vectorize", "bool", /*default=*/"true", "Use vectors; without it all loops are scalar">
  ];
}

def VectorMathApproximation : Pass<"vector-math-approximation", "func::FuncOp"> {
  let summary = "Expands exponentials and their kin on vectors into polynomials";
  let description = [{
    `math.exp` of an f32 vector is expanded with an error of about one ulp, with the right results for infinities and
    NaN; other functions use upstream's approximations. Scalars stay, and become calls to libm.
  }];
  let dependentDialects = ["arith::ArithDialect", "math::MathDialect", "vector::VectorDialect"];
}

def DeallocateLocalBuffers : Pass<"deallocate-local-buffers", "func::FuncOp"> {
  let summary = "Frees every allocation at the end of the block that made it";
  let description = [{
    In destination-passing style no buffer outlives the block that allocates it, so that no ownership needs to be
    tracked. A buffer that leaves its block is an error. Upstream's `optimize-allocation-liveness` then moves the
    deallocations up to the last uses.
  }];
  let dependentDialects = ["memref::MemRefDialect"];
}

def PlanMemory : Pass<"plan-memory", "ModuleOp"> {
  let summary = "Lays all buffers of an entry point out in one arena that the caller gives";
  let description = [{
    Every entry point (`buddy.entry`) gets one more argument, `%arena: memref<?xi8>`, and beside it stands
    `@<entry>_arena_size(tokens: i64) -> i64`, the bytes that the arena must have for so many tokens. Allocations of the
    entry point and of the private functions that it calls become views of the arena at multiples of 64 bytes. Buffers
    that are in use at the same time are apart, others share; a call takes the place that the called function's
    buffers need. The arena has a part of constant size, and behind it one that grows with the number of tokens.

    ```mlir
    %x = memref.alloc(%tokens) : memref<?x16xf32>
    ```
    becomes
    ```mlir
    %offset = arith.muli %c128, %tokens : index
    %x = memref.view %per_token[%offset][%tokens] : memref<?xi8> to memref<?x16xf32>
    ```

    Allocations whose size is no linear function of the number of tokens, and those that several threads make at
    once, stay. Must run before deallocations are inserted.
  }];
  let dependentDialects = ["arith::ArithDialect", "memref::MemRefDialect"];
  let options = [
    Option<"place", "place", "bool", /*default=*/"true",
           "Move allocations to the arena; without it entry points take an arena and leave it alone">
  ];
}

def InternalizePrivateFunctions : Pass<"internalize-private-functions", "ModuleOp"> {
  let summary = "Gives private functions internal linkage";
  let description = [{
    What no other module can call may be inlined and specialised, and its name may stand in every module of a program.

    ```mlir
    func.func private @layer(...) { ... }
    ```
    becomes
    ```mlir
    func.func private @layer(...) attributes {llvm.linkage = #llvm.linkage<internal>} { ... }
    ```
  }];
  let dependentDialects = ["LLVM::LLVMDialect"];
}

def PrefetchCaches : Pass<"prefetch-caches", "ModuleOp"> {
  let summary = "Lets the loop in front of an attention to one token fetch the KV cache";
  let description = [{
    Attention to a short cache takes as long as its first rows need to arrive. The last parallel loop in front of a call
    of an attention function that decodes (`attention-vectorize` marks it with `buddy.decodes`) reads weights without a
    pause; its iterations fetch the layer's first rows of K and V beside that, each iteration its share, so that a
    thread fetches about the heads that it attends to. Removes the mark.

    ```mlir
    scf.parallel (%i) = (%c0) to (%n) step (%c1) { ... }
    func.call @attention(%q, %k, %v, %layer, %position, %out)
    ```
    becomes
    ```mlir
    scf.parallel (%i) = (%c0) to (%n) step (%c1) {
      scf.for %row = %i * %rows / %n to (%i + 1) * %rows / %n step %c1 {
        memref.prefetch %k[%layer, ...]
        memref.prefetch %v[%layer, ...]
      }
      ...
    }
    func.call @attention(%q, %k, %v, %layer, %position, %out)
    ```
  }];
  let dependentDialects = ["arith::ArithDialect", "memref::MemRefDialect", "scf::SCFDialect"];
}

def ProfileRegions : Pass<"profile-regions", "ModuleOp"> {
  let summary = "Reports the beginning and the end of every outer loop to the program";
  let description = [{
    Each outermost loop, parallel or not, that calls no function of the module is a region. It is wrapped in calls of
    `buddy_profile_begin(names: ptr, id: i64)` and `buddy_profile_end(names: ptr, id: i64)`, which the program defines
    and which only the calling thread makes. `names` is the address of `@<entry>_profile_names`, a constant of bytes:
    line number `id` (from 0) is the region's name, made of its ops' locations (`model.layers.*.mlp/mul_13`), and, after
    tabulators, the bytes of weights that it reads and its operations for each row, where a pass has noted them in the
    location's metadata; a zero ends the text. Regions with the
    same name share a number. A module without an entry point is left alone.
  }];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect"];
}

#endif // BUDDY_PASSES
