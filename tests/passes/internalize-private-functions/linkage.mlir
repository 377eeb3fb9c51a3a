// RUN: buddy-opt %s --internalize-private-functions | FileCheck %s
// RUN: buddy-opt %s --internalize-private-functions --convert-func-to-llvm | FileCheck %s --check-prefix=LLVM

// CHECK-LABEL: func.func private @callee
// CHECK-SAME: llvm.linkage = #llvm.linkage<internal>
// LLVM: llvm.func internal @callee
func.func private @callee() {
  return
}

// A declaration is defined elsewhere.
// CHECK: func.func private @declared()
// CHECK-NOT: linkage
// LLVM: llvm.func @declared
func.func private @declared()

// CHECK-LABEL: func.func @entry
// LLVM: llvm.func @entry
func.func @entry() {
  call @callee() : () -> ()
  call @declared() : () -> ()
  return
}
