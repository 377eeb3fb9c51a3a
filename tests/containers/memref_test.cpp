//===- memref_test.cpp - MemRef against MLIR's own structure --------------===//

#include "buddy/MemRef.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "Check.h"

using buddy::MemRef;

/// mlir/ExecutionEngine/CRunnerUtils.h.
template <typename T, int N> struct StridedMemRefType {
  T *basePtr;
  T *data;
  std::int64_t offset;
  std::int64_t sizes[N];
  std::int64_t strides[N];
};

template <typename T, std::size_t N> static StridedMemRefType<T, N> asMlirSeesIt(const MemRef<T, N> &array) {
  static_assert(sizeof(array) == sizeof(StridedMemRefType<T, N>));
  StridedMemRefType<T, N> result;
  std::memcpy(&result, static_cast<const void *>(&array), sizeof result);
  return result;
}

static std::int64_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

static void checkLayout() {
  auto array = MemRef<float, 3>::zeros({{2, 3, 4}});
  const auto seen = asMlirSeesIt(array);
  CHECK(seen.data == array.data() && seen.offset == 0);
  CHECK(seen.sizes[0] == 2 && seen.sizes[1] == 3 && seen.sizes[2] == 4);
  CHECK(seen.strides[0] == 12 && seen.strides[1] == 4 && seen.strides[2] == 1);
  CHECK(reinterpret_cast<std::uintptr_t>(seen.data) % 64 == 0);
  CHECK(array.owns() && array.size() == 24 && array.size(1) == 3);
  for (int i = 0; i < 24; ++i)
    CHECK(array.data()[i] == 0);
  array(1, 2, 3) = 7;
  CHECK(seen.data[23] == 7 && std::as_const(array)(1, 2, 3) == 7);
}

static void checkOwnership() {
  auto array = MemRef<std::int64_t, 1>::zeros({{5}});
  array(4) = 42;
  const std::int64_t *data = array.data();
  MemRef<std::int64_t, 1> moved = std::move(array);
  CHECK(moved.data() == data && moved(4) == 42 && moved.owns());
  CHECK(!array.owns() && array.size() == 0 && array.data() == nullptr); // NOLINT: a moved-from MemRef is empty
  {
    MemRef<std::int64_t, 1> view = moved.view();
    CHECK(!view.owns() && view.data() == data);
    view(0) = 1;
  }
  CHECK(moved(0) == 1);
  moved = MemRef<std::int64_t, 1>::zeros({{2}});
  CHECK(moved.size() == 2 && moved(0) == 0);

  double own[6] = {0, 1, 2, 3, 4, 5};
  auto view = MemRef<double, 2>::view(own, {{2, 3}});
  CHECK(view(1, 0) == 3 && !view.owns() && asMlirSeesIt(view).basePtr == nullptr);
}

static void checkSizes() {
  CHECK((MemRef<float, 2>::zeros({{0, 5}}).size() == 0));
  CHECK((MemRef<float, 2>::lazy({{5, 0}}).size() == 0));
  const std::int64_t large = std::int64_t(1) << 62;
  using Array = MemRef<float, 3>;
  for (const Array::Shape &shape : {Array::Shape{{-1, 1, 1}}, Array::Shape{{large, 4, 1}}, Array::Shape{{large, 1, 1}},
                                    Array::Shape{{large, large, 0}}, Array::Shape{{0, large, large}}}) {
    CHECK(errorOf([&] { Array::zeros(shape); }).find("can not exist") != std::string::npos);
    CHECK(errorOf([&] { Array::lazy(shape); }).find("can not exist") != std::string::npos);
    CHECK(errorOf([&] { Array::view(nullptr, shape); }).find("can not exist") != std::string::npos);
  }
  CHECK(errorOf([] { MemRef<char, 1>::lazy({{std::int64_t(1) << 60}}); }).find("out of memory") != std::string::npos);
}

/// A large cache takes memory only where it is written, and gives it back.
[[maybe_unused]] static void checkLaziness() {
  const std::int64_t before = residentBytes();
  {
    auto cache = MemRef<float, 4>::lazy({{32, 8, 4096, 128}}); // 512 MiB
    CHECK(reinterpret_cast<std::uintptr_t>(cache.data()) % 64 == 0);
    for (std::int64_t layer = 0; layer < 32; ++layer)
      for (std::int64_t head = 0; head < 8; ++head)
        cache(layer, head, 0, 0) = 1;
    CHECK(cache(31, 7, 4095, 127) == 0 && cache(31, 7, 0, 0) == 1);
    CHECK(residentBytes() - before < 16 << 20);
  }
  CHECK(residentBytes() - before < 4 << 20);
}

int main() {
  checkLayout();
  checkOwnership();
  checkSizes();
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) // whose shadow memory counts too
  checkLaziness();
#endif
}
