// RUN: buddy-opt %s --drop-region-barriers --split-input-file | FileCheck %s
// RUN: buddy-opt %s --drop-region-barriers --split-input-file | FileCheck %s --check-prefix=KEPT

// CHECK-LABEL: @last
// CHECK: omp.wsloop nowait
func.func @last(%count: index, %out: memref<?xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %value = arith.constant 1.0 : f32
  omp.parallel {
    omp.wsloop {
      omp.loop_nest (%i) : index = (%zero) to (%count) step (%one) {
        memref.store %value, %out[%i] : memref<?xf32>
        omp.yield
      }
    }
    omp.terminator
  }
  return
}

// -----

// What follows may read what other threads have written: only the last loop goes without a barrier.
// CHECK-LABEL: @first_of_two
// KEPT-LABEL: @first_of_two
// KEPT-NOT: nowait
// KEPT: omp.loop_nest
// CHECK: omp.loop_nest
// CHECK: omp.wsloop nowait
func.func @first_of_two(%count: index, %a: memref<?xf32>, %b: memref<?xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %value = arith.constant 1.0 : f32
  omp.parallel {
    omp.wsloop {
      omp.loop_nest (%i) : index = (%zero) to (%count) step (%one) {
        memref.store %value, %a[%i] : memref<?xf32>
        omp.yield
      }
    }
    omp.wsloop {
      omp.loop_nest (%i) : index = (%zero) to (%count) step (%one) {
        %read = memref.load %a[%zero] : memref<?xf32>
        memref.store %read, %b[%i] : memref<?xf32>
        omp.yield
      }
    }
    omp.terminator
  }
  return
}

// -----

// A reduction's result is read behind the barrier.
// KEPT-LABEL: @reduction
// KEPT-NOT: nowait
omp.declare_reduction @sum : f32 init {
^bb0(%arg0: f32):
  %zero = arith.constant 0.0 : f32
  omp.yield(%zero : f32)
} combiner {
^bb0(%arg0: f32, %arg1: f32):
  %total = arith.addf %arg0, %arg1 : f32
  omp.yield(%total : f32)
}
func.func @reduction(%count: index, %total: !llvm.ptr) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  omp.parallel {
    omp.wsloop reduction(@sum %total -> %part : !llvm.ptr) {
      omp.loop_nest (%i) : index = (%zero) to (%count) step (%one) {
        omp.yield
      }
    }
    omp.terminator
  }
  return
}
