//===- Weights.h - A model's weights, memory-mapped -----------------------===//
//
// NAME.weights.safetensors, read-only and shared between processes. Opening it reads the header alone, so that it takes
// no time however large the model is; generated code reads the tensors at offsets that it knows.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_WEIGHTS_H
#define BUDDY_WEIGHTS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "buddy/MemRef.h"

namespace buddy {

class Weights {
public:
  /// The newest format_version that this code reads.
  static constexpr int formatVersion = 1;

  /// Maps the file at `path` and checks its size, its header and that it was made for the program with the ABI hash
  /// `expectedAbi`. Throws Error for a missing, truncated, foreign or newer file and for another ABI.
  static Weights open(const std::string &path, std::string_view expectedAbi);

  Weights(Weights &&other) noexcept;
  Weights &operator=(Weights &&other) noexcept;
  Weights(const Weights &) = delete;
  Weights &operator=(const Weights &) = delete;
  ~Weights();

  /// The data section, 64-byte aligned, and its length. Reading is all that the mapping allows.
  const std::int8_t *base() const noexcept { return static_cast<const std::int8_t *>(mapping) + dataStart; }
  std::size_t bytes() const noexcept { return length - dataStart; }

  /// The data section as the entry points take it; a view that must not outlive these weights.
  MemRef<std::int8_t, 1> memref() const;

  /// Compares the data section with the checksum in the header; reads the whole file. Throws Error when they differ.
  void verify() const;

  /// Reads the whole file into the page cache and the process's page tables, so that no later access waits for that.
  void populate() const noexcept;

  const std::string &path() const noexcept { return file; }
  const std::string &modelId() const { return metadata("model_id"); }

  /// An entry of the file's `__metadata__`; throws Error when there is none of that name.
  const std::string &metadata(const std::string &key) const;

private:
  Weights() = default;
  void swap(Weights &other) noexcept;
  void checkHeader(std::string_view expectedAbi);

  std::string file;
  void *mapping = nullptr;
  std::size_t length = 0;    // of the file
  std::size_t dataStart = 0; // 8 + length of the header
  std::map<std::string, std::string> entries;
};

} // namespace buddy

#endif // BUDDY_WEIGHTS_H
