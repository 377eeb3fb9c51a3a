//===- VerifyModelContract.cpp - What the importer promised ---------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Tosa/IR/TosaOps.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_VERIFYMODELCONTRACT
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// The base of the weights: memref<?xi8>.
bool isWeightsBase(Type type) {
  auto memref = dyn_cast<MemRefType>(type);
  return memref && memref.getRank() == 1 && memref.isDynamicDim(0) && memref.getElementType().isInteger(8) &&
         memref.getLayout().isIdentity();
}

/// A tensor of `element` with the given sizes; `any` stands for any static size.
constexpr int64_t any = -1;
constexpr int64_t dynamic = ShapedType::kDynamic;
bool isTensor(Type type, Type element, ArrayRef<int64_t> sizes) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || tensor.getElementType() != element || tensor.getRank() != static_cast<int64_t>(sizes.size()))
    return false;
  for (auto [size, expected] : llvm::zip_equal(tensor.getShape(), sizes))
    if (expected == any ? ShapedType::isDynamic(size) : size != expected)
      return false;
  return true;
}

/// A KV cache, tensor<LxHkvx?xDxE>; of int8 with the four bytes of a scale behind each row of D.
constexpr StringLiteral cacheType = "tensor<LxHkvx?xDxE> with E f32, f16 or bf16, or tensor<LxHkvx?x(D+4)xi8>";
constexpr int64_t scaleBytes = 4;
bool isCache(Type type) {
  auto cache = dyn_cast<RankedTensorType>(type);
  if (!cache)
    return false;
  Type element = cache.getElementType();
  return (element.isF32() || element.isF16() || element.isBF16() || element.isInteger(8)) &&
         isTensor(type, element, {any, any, dynamic, any});
}

class ContractVerifier {
public:
  ContractVerifier(ModuleOp module, int64_t maxConstantBytes)
      : module(module), maxConstantBytes(maxConstantBytes), f32(Float32Type::get(module.getContext())),
        i64(IntegerType::get(module.getContext(), 64)), index(IndexType::get(module.getContext())) {}

  LogicalResult verify() {
    verifyAttributes();
    bool hasEntry = false;
    for (Operation &op : *module.getBody()) {
      auto function = dyn_cast<func::FuncOp>(op);
      if (!function) {
        fail(&op) << "a model's module holds functions only, but this is '" << op.getName() << "'";
        continue;
      }
      hasEntry |= function.isPublic();
      verifyFunction(function);
    }
    if (!hasEntry)
      fail(module) << "the module has no entry point: a public function with the attribute 'buddy.entry'";
    return success(!failed);
  }

private:
  ModuleOp module;
  int64_t maxConstantBytes;
  Type f32, i64, index;
  bool failed = false;

  InFlightDiagnostic fail(Operation *op) {
    failed = true;
    return emitError(op->getLoc());
  }

  //===--------------------------------------------------------------------===//
  // The module
  //===--------------------------------------------------------------------===//

  void verifyAttributes() {
    if (!module->getAttrOfType<StringAttr>("buddy.abi"))
      fail(module) << "the module lacks the string attribute 'buddy.abi'";
    auto target = module->getAttrOfType<DictionaryAttr>("buddy.target");
    if (!target) {
      fail(module) << "the module lacks the dictionary attribute 'buddy.target'";
      return;
    }
    for (StringRef name : {"name", "triple", "cpu", "features"})
      if (!target.getAs<StringAttr>(name))
        fail(module) << "buddy.target lacks the string '" << name << "'";
    for (StringRef name : {"vector_bits", "registers", "panel", "tile_rows"})
      if (auto number = target.getAs<IntegerAttr>(name); !number || number.getType() != i64 || number.getInt() <= 0)
        fail(module) << "buddy.target lacks the positive i64 '" << name << "'";
  }

  //===--------------------------------------------------------------------===//
  // Functions
  //===--------------------------------------------------------------------===//

  void verifyFunction(func::FuncOp function) {
    if (function.isExternal()) {
      fail(function) << "function '" << function.getName() << "' has no body";
      return;
    }
    for (Type type : function.getArgumentTypes())
      if (isa<BaseMemRefType>(type) && !isWeightsBase(type))
        fail(function) << "function '" << function.getName() << "' takes " << type
                       << ", but the only buffer is the weights' base, memref<?xi8>";
    if (function.isPublic())
      verifyEntry(function);
    else
      verifyDestinationPassing(function);
    if (function->hasAttr("buddy.attention"))
      verifyAttention(function);
    if (function->hasAttr("buddy.quantize"))
      verifyQuantizer(function);
    if (function->hasAttr("buddy.layer"))
      verifyLayer(function);
    function.walk([&](Operation *op) {
      if (op != function.getOperation())
        verifyOperation(op);
    });
  }

  void verifyEntry(func::FuncOp function) {
    auto entry = function->getAttrOfType<StringAttr>("buddy.entry");
    if (!entry || !llvm::is_contained({"prefill", "decode", "score"}, entry.getValue())) {
      fail(function) << "public function '" << function.getName()
                     << "' needs the attribute 'buddy.entry' with the value prefill, decode or score";
      return;
    }
    if (!function->hasAttr("llvm.emit_c_interface"))
      fail(function) << "entry point '" << function.getName() << "' lacks 'llvm.emit_c_interface'";
    bool decodes = entry.getValue() == "decode", scores = entry.getValue() == "score";
    ArrayRef<Type> types = function.getArgumentTypes();
    auto expect = [&](unsigned number, StringRef name, StringRef type, bool holds) {
      if (!holds)
        fail(function) << "argument " << number << " (" << name << ") of entry point '" << function.getName() << "' is "
                       << types[number] << ", but " << type << " is needed";
    };
    if (types.size() != 6) {
      fail(function) << "entry point '" << function.getName()
                     << "' needs the arguments weights, ids, position, k_cache, v_cache and logits, but has "
                     << types.size();
      return;
    }
    expect(0, "weights", "memref<?xi8>", isWeightsBase(types[0]));
    expect(1, "ids", decodes ? "tensor<1x1xi64>" : "tensor<1x?xi64>",
           isTensor(types[1], i64, {1, decodes ? 1 : dynamic}));
    expect(2, "position", "i64", types[2] == i64);
    expect(3, "k_cache", cacheType, isCache(types[3]));
    expect(4, "v_cache", "the type of k_cache", types[4] == types[3]);
    expect(5, "logits", scores ? "tensor<1x?xVxf32>" : "tensor<1x1xVxf32>",
           isTensor(types[5], f32, {1, scores ? dynamic : 1, any}));
    for (unsigned number : {3u, 4u, 5u})
      if (auto writable = function.getArgAttrOfType<BoolAttr>(number, "bufferization.writable");
          !writable || !writable.getValue())
        fail(function) << "argument " << number << " of entry point '" << function.getName()
                       << "' lacks bufferization.writable = true";
    if (function.getResultTypes() != types.drop_front(3))
      fail(function) << "entry point '" << function.getName() << "' must return its last three arguments";
  }

  /// Every tensor that goes out came in as an argument of the same type, each argument for one result.
  void verifyDestinationPassing(func::FuncOp function) {
    SmallVector<Type> destinations(function.getArgumentTypes());
    for (auto [number, type] : llvm::enumerate(function.getResultTypes())) {
      if (isa<BaseMemRefType>(type)) {
        fail(function) << "private function '" << function.getName() << "' returns a buffer";
        continue;
      }
      if (!isa<TensorType>(type))
        continue;
      auto destination = llvm::find(destinations, type);
      if (destination == destinations.end()) {
        fail(function) << "result " << number << " of private function '" << function.getName() << "', " << type
                       << ", has no argument of that type to be written into";
        continue;
      }
      destinations.erase(destination);
    }
  }

  void verifyLayer(func::FuncOp function) {
    ArrayRef<Type> types = function.getArgumentTypes();
    if (types.size() < 3 || !isWeightsBase(types[0]) || types[1] != index)
      fail(function) << "layer function '" << function.getName()
                     << "' must take the weights' base, memref<?xi8>, and the layer, index, before its tensors";
  }

  void verifyAttention(func::FuncOp function) {
    auto options = function->getAttrOfType<DictionaryAttr>("buddy.attention");
    if (auto scale = options ? options.getAs<FloatAttr>("scale") : FloatAttr(); !scale || scale.getType() != f32)
      fail(function) << "buddy.attention of '" << function.getName() << "' lacks the f32 'scale'";
    if (function.isPublic())
      fail(function) << "attention function '" << function.getName() << "' must be private";
    if (!hasAttentionTypes(function))
      fail(function) << "attention function '" << function.getName()
                     << "' must have the type (q: tensor<1xHxSxDxf32>, k_cache, v_cache: " << cacheType
                     << ", layer: index, position: index, out: tensor<1xSxHxDxf32>) -> tensor<1xSxHxDxf32>, S being 1 "
                        "or ?, H a multiple of Hkv";
  }

  bool hasAttentionTypes(func::FuncOp function) {
    ArrayRef<Type> types = function.getArgumentTypes();
    if (types.size() != 6 || function.getResultTypes() != types.drop_front(5))
      return false;
    auto q = dyn_cast<RankedTensorType>(types[0]);
    if (!q || q.getRank() != 4 || !isCache(types[1]) || types[2] != types[1] || types[3] != index || types[4] != index)
      return false;
    auto cache = cast<RankedTensorType>(types[1]);
    int64_t heads = q.getDimSize(1), queries = q.getDimSize(2), headDim = cache.getDimSize(3);
    if (cache.getElementType().isInteger(8))
      headDim -= scaleBytes;
    return (queries == 1 || queries == dynamic) && isTensor(q, f32, {1, any, queries, headDim}) &&
           isTensor(types[5], f32, {1, queries, heads, headDim}) && heads % cache.getDimSize(1) == 0;
  }

  void verifyQuantizer(func::FuncOp function) {
    auto options = function->getAttrOfType<DictionaryAttr>("buddy.quantize");
    auto rotation = options ? options.getAs<IntegerAttr>("rotation") : IntegerAttr();
    if (!rotation || rotation.getInt() < 1)
      fail(function) << "buddy.quantize of '" << function.getName() << "' lacks the positive integer 'rotation'";
    if (function.isPublic())
      fail(function) << "quantising function '" << function.getName() << "' must be private";
    if (!hasQuantizerTypes(function))
      fail(function) << "quantising function '" << function.getName()
                     << "' must have the type (x: tensor<MxKxf32>, integers: tensor<MxGx...xi8> or i16, scales: "
                        "tensor<MxGxf32>) -> (integers, scales), M being 1 or ?, K a multiple of G";
  }

  bool hasQuantizerTypes(func::FuncOp function) {
    ArrayRef<Type> types = function.getArgumentTypes();
    if (types.size() != 3 || function.getResultTypes() != types.drop_front(1))
      return false;
    auto x = dyn_cast<RankedTensorType>(types[0]), integers = dyn_cast<RankedTensorType>(types[1]);
    if (!x || x.getRank() != 2 || !integers || integers.getRank() < 2)
      return false;
    int64_t rows = x.getDimSize(0), columns = x.getDimSize(1), groups = integers.getDimSize(1);
    Type element = integers.getElementType();
    return (rows == 1 || rows == dynamic) && isTensor(x, f32, {rows, columns}) && integers.getDimSize(0) == rows &&
           isTensor(types[2], f32, {rows, groups}) && !ShapedType::isDynamicShape(integers.getShape().drop_front()) &&
           (element.isInteger(8) || element.isInteger(16)) && groups >= 1 && columns % groups == 0 &&
           ShapedType::getNumElements(integers.getShape().drop_front()) == columns;
  }

  //===--------------------------------------------------------------------===//
  // Operations
  //===--------------------------------------------------------------------===//

  void verifyOperation(Operation *op) {
    if (auto view = dyn_cast<memref::ViewOp>(op))
      return verifyWeightView(view);
    if (auto fields = dyn_cast<memref::ReinterpretCastOp>(op))
      return verifyFields(fields);
    if (auto toTensor = dyn_cast<bufferization::ToTensorOp>(op))
      return verifyToTensor(toTensor);
    if (!isAllowed(op)) {
      fail(op) << "'" << op->getName()
               << "' may not stand in a model's module: tosa, linalg, tensor, arith, math, scf and func may, and "
                  "bufferization.to_tensor, bufferization.materialize_in_destination, memref.view and "
                  "memref.reinterpret_cast";
      return;
    }
    if (!isa<func::CallOp, func::ReturnOp>(op) && llvm::any_of(op->getOperandTypes(), llvm::IsaPred<BaseMemRefType>))
      fail(op) << "'" << op->getName() << "' uses a buffer; weights are read through memref.view and "
               << "bufferization.to_tensor alone";
    verifyConstants(op);
  }

  static bool isAllowed(Operation *op) {
    return isa<arith::ArithDialect, func::FuncDialect, linalg::LinalgDialect, math::MathDialect, scf::SCFDialect,
               tensor::TensorDialect, tosa::TosaDialect>(op->getDialect()) ||
           isa<bufferization::MaterializeInDestinationOp>(op);
  }

  void verifyWeightView(memref::ViewOp view) {
    auto argument = dyn_cast<BlockArgument>(view.getSource());
    if (!argument || !isa<func::FuncOp>(argument.getOwner()->getParentOp()))
      fail(view) << "the source of a weight's view must be the weights' base, an argument of the function";
    if (!view.getType().hasStaticShape())
      fail(view) << "a weight's view must be of a static type, but this is " << view.getType();
    for (Operation *user : view->getUsers())
      if (!isa<bufferization::ToTensorOp, memref::ReinterpretCastOp>(user))
        fail(user) << "a weight's view may only be read through bufferization.to_tensor";
  }

  /// One field of a weight in blocks: every element lies inside the view.
  void verifyFields(memref::ReinterpretCastOp fields) {
    auto view = fields.getSource().getDefiningOp<memref::ViewOp>();
    if (!view) {
      fail(fields) << "memref.reinterpret_cast may only read a memref.view of the weights";
      return;
    }
    MemRefType type = fields.getType();
    SmallVector<int64_t> strides;
    int64_t offset;
    if (!type.hasStaticShape() || mlir::failed(type.getStridesAndOffset(strides, offset)) ||
        ShapedType::isDynamic(offset) || llvm::any_of(strides, ShapedType::isDynamic)) {
      fail(fields) << "the fields of a weight must be of a static type, but this is " << type;
      return;
    }
    int64_t last = offset;
    for (auto [size, stride] : llvm::zip_equal(type.getShape(), strides))
      last += (size - 1) * stride;
    if (view.getType().hasStaticShape() && (last < 0 || last >= view.getType().getNumElements()))
      fail(fields) << "the fields of a weight end at element " << last << " of a view of "
                   << view.getType().getNumElements();
    for (Operation *user : fields->getUsers())
      if (!isa<bufferization::ToTensorOp>(user))
        fail(user) << "the fields of a weight may only be read through bufferization.to_tensor";
  }

  void verifyToTensor(bufferization::ToTensorOp op) {
    if (!isa_and_nonnull<memref::ViewOp, memref::ReinterpretCastOp>(op.getBuffer().getDefiningOp()))
      fail(op) << "bufferization.to_tensor may only read a memref.view of the weights, or fields of one";
    if (!op.getRestrict())
      fail(op) << "a weight must be read with 'restrict'";
    if (op.getWritable())
      fail(op) << "a weight may not be 'writable'";
  }

  void verifyConstants(Operation *op) {
    for (NamedAttribute attribute : op->getAttrs()) {
      auto elements = dyn_cast<ElementsAttr>(attribute.getValue());
      if (!elements || elements.isSplat() || !elements.getElementType().isIntOrIndexOrFloat())
        continue;
      Type element = elements.getElementType();
      int64_t bits = element.isIndex() ? 64 : element.getIntOrFloatBitWidth();
      int64_t bytes = elements.getNumElements() * llvm::divideCeil(bits, 8);
      if (bytes > maxConstantBytes)
        fail(op) << "a constant of " << bytes << " bytes stands in the module; more than " << maxConstantBytes
                 << " belong into the weights file";
    }
  }
};

struct VerifyModelContract : buddy::impl::VerifyModelContractBase<VerifyModelContract> {
  using Base::Base;

  void runOnOperation() override {
    if (failed(ContractVerifier(getOperation(), maxConstantBytes).verify()))
      signalPassFailure();
    markAllAnalysesPreserved();
  }
};

} // namespace
