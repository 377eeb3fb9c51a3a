//===- Weights.cpp - A model's weights, memory-mapped ---------------------===//

#include "buddy/Weights.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "SafetensorsHeader.h"
#include "Sha256.h"
#include "buddy/Error.h"

using namespace buddy;

// The safetensors format itself allows 100 MB; a model of 1,000 layers stays far below this.
static constexpr std::uint64_t maxHeaderBytes = 64u << 20;

/// What a file with these first bytes seems to be, for a message.
static std::string describeForeign(std::string_view start) {
  struct Kind {
    std::string_view magic, description;
  };
  static constexpr Kind kinds[] = {{"GGUF", "a GGUF model"},
                                   {"PK\x03\x04", "a zip archive or a PyTorch checkpoint"},
                                   {"version https://git-lfs", "a Git LFS pointer, not the file itself"},
                                   {"\x7f"
                                    "ELF",
                                    "a program"},
                                   {"BUDDYVOC", "a vocabulary: the tokenizer's file in the place of the weights"}};
  for (const Kind &kind : kinds)
    if (start.substr(0, kind.magic.size()) == kind.magic)
      return "it looks like " + std::string(kind.description);
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && start[first] == '<')
    return "it looks like an HTML page";
  return "its first bytes are no safetensors header";
}

static Error foreignFile(const std::string &path, const std::string &why) {
  return Error("'" + path + "' is not a weights file of buddy-gen (" + why +
               "): a file named NAME.weights.safetensors, as the model's build writes it, is expected here");
}

static Error damagedFile(const std::string &path, const std::string &why) {
  return Error("the weights file '" + path + "' is damaged (" + why + "): copy it again, or delete it and build again");
}

/// The length of the header, out of the file's first 8 bytes.
static std::uint64_t headerLength(const unsigned char *start) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i)
    value = value << 8 | start[i];
  return value;
}

namespace {

/// Closes a file descriptor.
struct Descriptor {
  explicit Descriptor(int opened) : number(opened) {}
  Descriptor(const Descriptor &) = delete;
  Descriptor &operator=(const Descriptor &) = delete;
  ~Descriptor() {
    if (number >= 0)
      close(number);
  }
  const int number;
};

} // namespace

Weights Weights::open(const std::string &path, std::string_view expectedAbi) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (descriptor.number < 0 || fstat(descriptor.number, &status) != 0)
    throw Error("the weights file '" + path + "' can not be opened (" + std::strerror(errno) +
                "): build the model, or name the folder that holds it");
  if (!S_ISREG(status.st_mode))
    throw Error("'" + path + "' is no regular file: the model's weights file is expected here");

  Weights weights;
  weights.file = path;
  weights.length = static_cast<std::size_t>(status.st_size);
  if (weights.length < 8)
    throw damagedFile(path, "it has only " + std::to_string(weights.length) + " bytes");
  void *mapping = mmap(nullptr, weights.length, PROT_READ, MAP_SHARED, descriptor.number, 0);
  if (mapping == MAP_FAILED)
    throw Error("the weights file '" + path + "' can not be mapped into memory (" + std::strerror(errno) + ")");
  weights.mapping = mapping;
  weights.checkHeader(expectedAbi);
  return weights;
}

void Weights::checkHeader(std::string_view expectedAbi) {
  const char *start = static_cast<const char *>(mapping);
  const std::uint64_t jsonBytes = headerLength(static_cast<const unsigned char *>(mapping));
  if (length == 8 || start[8] != '{' || jsonBytes < 2 || jsonBytes > maxHeaderBytes)
    throw foreignFile(file, describeForeign({start, std::min<std::size_t>(length, 64)}));
  if (jsonBytes > length - 8)
    throw damagedFile(file, "it is cut short inside its header: " + std::to_string(length) + " bytes of at least " +
                                std::to_string(8 + jsonBytes));

  SafetensorsHeader header;
  try {
    header = parseSafetensorsHeader({start + 8, static_cast<std::size_t>(jsonBytes)});
  } catch (const Error &error) {
    throw damagedFile(file, std::string("in its header, ") + error.what());
  }
  entries = std::move(header.metadata);
  dataStart = 8 + static_cast<std::size_t>(jsonBytes);

  const auto format = entries.find("format");
  if (format == entries.end() || format->second != "buddy-weights")
    throw foreignFile(file, "it is a safetensors file of another program");
  const std::string &exporter = metadata("exporter");
  const std::string &version = metadata("format_version");
  if (version != std::to_string(formatVersion))
    throw Error("the weights file '" + file + "' has format version " + version + " (written by buddy-gen " + exporter +
                ") and this program reads version " + std::to_string(formatVersion) +
                ": build the model and the program with the same buddy-gen");
  if (length - dataStart != header.dataBytes)
    throw damagedFile(file, std::string(length - dataStart < header.dataBytes ? "it is cut short" : "it is too long") +
                                ": " + std::to_string(length) + " bytes instead of " +
                                std::to_string(dataStart + header.dataBytes));
  if (dataStart % memRefAlignment)
    throw damagedFile(file, "its data section does not start at a multiple of 64 bytes");
  if (metadata("abi") != expectedAbi)
    throw Error("the weights file '" + file + "' belongs to another program: its ABI is " + metadata("abi") +
                " (written by buddy-gen " + exporter + "), this program's ABI is " + std::string(expectedAbi) +
                "; build both from the same model with the same options");
  metadata("model_id");
  metadata("content_sha256");
}

const std::string &Weights::metadata(const std::string &key) const {
  const auto it = entries.find(key);
  if (it == entries.end())
    throw damagedFile(file, "its header has no metadata '" + key + "'");
  return it->second;
}

MemRef<std::int8_t, 1> Weights::memref() const {
  // Entry points take a pointer to mutable bytes and never write through it; the mapping would not let them.
  return MemRef<std::int8_t, 1>::view(const_cast<std::int8_t *>(base()), {{static_cast<std::int64_t>(bytes())}});
}

void Weights::verify() const {
  const std::string found = sha256Hex(base(), bytes());
  if (found != metadata("content_sha256"))
    throw damagedFile(file, "the SHA-256 of its data is " + found + " instead of " + metadata("content_sha256"));
}

void Weights::populate() const noexcept {
#ifdef MADV_POPULATE_READ
  constexpr int advice = MADV_POPULATE_READ;
#else
  constexpr int advice = 22; // of Linux 5.14; older headers do not have it
#endif
  if (madvise(mapping, length, advice) == 0)
    return;
  const volatile char *bytes = static_cast<const volatile char *>(mapping);
  for (std::size_t at = 0; at < length; at += 4096)
    static_cast<void>(bytes[at]);
}

Weights::Weights(Weights &&other) noexcept { swap(other); }

Weights &Weights::operator=(Weights &&other) noexcept {
  Weights(std::move(other)).swap(*this);
  return *this;
}

Weights::~Weights() {
  if (mapping)
    munmap(mapping, length);
}

void Weights::swap(Weights &other) noexcept {
  std::swap(file, other.file);
  std::swap(mapping, other.mapping);
  std::swap(length, other.length);
  std::swap(dataStart, other.dataStart);
  std::swap(entries, other.entries);
}
