//===- MemRef.h - An n-dimensional array in MLIR's layout -----------------===//
//
// MemRef<T, N> has exactly the members of MLIR's StridedMemRefType<T, N>, so that its address can be handed to a
// function of the C interface (_mlir_ciface_*). It either owns its elements or is a view of somebody else's:
//
//   auto owned = MemRef<float, 2>::zeros({rows, columns});   // 64-byte aligned
//   auto cache = MemRef<float, 4>::lazy({l, h, n, d});       // zeros too; a page costs memory when first written
//   auto view = MemRef<float, 2>::view(pointer, {rows, columns});
//
// Owned storage begins with one 64-byte block that says how it is given back; `allocated` points to that block and
// `aligned` behind it. A view has `allocated == nullptr`, so no further member is needed. A MemRef moves, and never
// copies its elements by itself.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_MEMREF_H
#define BUDDY_MEMREF_H

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include <sys/mman.h>

#include "buddy/Error.h"

namespace buddy {

/// Alignment in bytes of every owned MemRef's first element.
inline constexpr std::size_t memRefAlignment = 64;

namespace detail {

/// What stands in front of owned elements.
struct alignas(memRefAlignment) MemRefBlock {
  std::size_t mappedBytes; // 0: the block came from aligned_alloc; otherwise the length of its mapping
};
static_assert(sizeof(MemRefBlock) == memRefAlignment);

/// The heap's block for `bytes` bytes of elements, all zero.
inline MemRefBlock *allocateBlock(std::size_t bytes) {
  // aligned_alloc wants a multiple of the alignment.
  const std::size_t padded = (bytes + memRefAlignment - 1) / memRefAlignment * memRefAlignment;
  void *memory = std::aligned_alloc(memRefAlignment, sizeof(MemRefBlock) + padded);
  if (!memory)
    throw Error("out of memory: " + std::to_string(bytes) + " bytes could not be allocated");
  std::memset(memory, 0, sizeof(MemRefBlock) + padded);
  return ::new (memory) MemRefBlock{0};
}

/// A block of untouched pages for `bytes` bytes of elements.
inline MemRefBlock *mapBlock(std::size_t bytes) {
  const std::size_t length = sizeof(MemRefBlock) + bytes;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void *memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED)
    throw Error("out of memory: " + std::to_string(bytes) + " bytes could not be reserved");
#ifdef MADV_NOHUGEPAGE
  // One touched row must not make 2 MiB around it resident.
  madvise(memory, length, MADV_NOHUGEPAGE);
#endif
  return ::new (memory) MemRefBlock{length};
}

inline void releaseBlock(MemRefBlock *block) noexcept {
  if (block->mappedBytes)
    munmap(block, block->mappedBytes);
  else
    std::free(block);
}

} // namespace detail

template <typename T, std::size_t N> class MemRef {
  static_assert(N >= 1, "a MemRef has at least one dimension");
  static_assert(std::is_trivially_copyable_v<T>, "elements are plain data");
  static_assert(alignof(T) <= memRefAlignment);

public:
  using Shape = std::array<std::int64_t, N>;

  /// An empty view: every size is zero.
  MemRef() noexcept = default;

  /// Owns a row-major array of zeros. Throws Error for a negative size, a size that overflows, or no memory.
  static MemRef zeros(const Shape &shape) { return MemRef(detail::allocateBlock(checkedBytes(shape)), shape); }

  /// Owns a row-major array of zeros whose pages take memory only once they are written. Throws as above.
  static MemRef lazy(const Shape &shape) { return MemRef(detail::mapBlock(checkedBytes(shape)), shape); }

  /// A view of a row-major array that must outlive it.
  static MemRef view(T *data, const Shape &shape) {
    checkedBytes(shape);
    return MemRef(nullptr, data, shape);
  }

  MemRef(const MemRef &) = delete;
  MemRef &operator=(const MemRef &) = delete;
  MemRef(MemRef &&other) noexcept { swap(other); }
  MemRef &operator=(MemRef &&other) noexcept {
    MemRef(std::move(other)).swap(*this);
    return *this;
  }
  ~MemRef() {
    if (allocated)
      detail::releaseBlock(reinterpret_cast<detail::MemRefBlock *>(allocated));
  }

  /// A view of these elements; it must not outlive their owner.
  MemRef view() const noexcept {
    MemRef result;
    result.aligned = aligned;
    result.offset = offset;
    result.extents = extents;
    result.steps = steps;
    return result;
  }

  /// The first element.
  T *data() noexcept { return aligned + offset; }
  const T *data() const noexcept { return aligned + offset; }

  /// The number of elements.
  std::int64_t size() const noexcept {
    std::int64_t count = 1;
    for (std::int64_t extent : extents)
      count *= extent;
    return count;
  }

  /// The size of one dimension, and all of them.
  std::int64_t size(std::size_t dimension) const noexcept { return extents[dimension]; }
  const Shape &sizes() const noexcept { return extents; }
  /// Distances in elements between neighbours of each dimension.
  const Shape &strides() const noexcept { return steps; }
  bool owns() const noexcept { return allocated != nullptr; }

  /// The element at (index...); one index per dimension.
  template <typename... Index> T &operator()(Index... index) noexcept {
    return aligned[position({{static_cast<std::int64_t>(index)...}})];
  }
  template <typename... Index> const T &operator()(Index... index) const noexcept {
    return aligned[position({{static_cast<std::int64_t>(index)...}})];
  }

private:
  MemRef(detail::MemRefBlock *block, const Shape &shape) noexcept
      : MemRef(reinterpret_cast<T *>(block), reinterpret_cast<T *>(block + 1), shape) {}

  MemRef(T *storage, T *elements, const Shape &shape) noexcept : allocated(storage), aligned(elements), extents(shape) {
    std::int64_t step = 1;
    for (std::size_t i = N; i-- > 0;) {
      steps[i] = step;
      step *= shape[i] > 0 ? shape[i] : 1;
    }
  }

  std::int64_t position(const Shape &index) const noexcept {
    std::int64_t result = offset;
    for (std::size_t i = 0; i < N; ++i) {
      assert(index[i] >= 0 && index[i] < extents[i] && "index out of bounds");
      result += index[i] * steps[i];
    }
    return result;
  }

  static std::size_t checkedBytes(const Shape &shape) {
    // Room for the block in front and for rounding up; strides count zero sizes as one.
    constexpr std::size_t limit = std::numeric_limits<std::ptrdiff_t>::max() - 2 * memRefAlignment;
    std::size_t bytes = sizeof(T);
    bool empty = false;
    for (std::int64_t extent : shape) {
      const bool fits = extent >= 0 && (extent == 0 || bytes <= limit / static_cast<std::size_t>(extent));
      if (!fits)
        throw Error("an array of shape " + shapeText(shape) + " can not exist: a size is negative or too large");
      empty |= extent == 0;
      bytes *= extent ? static_cast<std::size_t>(extent) : 1;
    }
    return empty ? 0 : bytes;
  }

  static std::string shapeText(const Shape &shape) {
    std::string text;
    for (std::int64_t extent : shape)
      text += (text.empty() ? "" : "x") + std::to_string(extent);
    return text;
  }

  void swap(MemRef &other) noexcept {
    std::swap(allocated, other.allocated);
    std::swap(aligned, other.aligned);
    std::swap(offset, other.offset);
    std::swap(extents, other.extents);
    std::swap(steps, other.steps);
  }

  // MLIR's StridedMemRefType<T, N>: T *basePtr, *data; int64_t offset, sizes[N], strides[N].
  T *allocated = nullptr;
  T *aligned = nullptr;
  std::int64_t offset = 0;
  Shape extents{};
  Shape steps{};
};

namespace detail {

/// MLIR's own definition, to compare with.
template <typename T, int N> struct StridedMemRefType {
  T *basePtr;
  T *data;
  std::int64_t offset;
  std::int64_t sizes[N];
  std::int64_t strides[N];
};

template <typename T, int N>
inline constexpr bool hasMlirLayout =
    std::is_standard_layout_v<MemRef<T, N>> && sizeof(MemRef<T, N>) == sizeof(StridedMemRefType<T, N>) &&
    alignof(MemRef<T, N>) == alignof(StridedMemRefType<T, N>);
static_assert(hasMlirLayout<float, 1> && hasMlirLayout<float, 4> && hasMlirLayout<std::int8_t, 1> &&
              hasMlirLayout<std::int64_t, 2>);

} // namespace detail

} // namespace buddy

#endif // BUDDY_MEMREF_H
