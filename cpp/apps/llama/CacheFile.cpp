//===- CacheFile.cpp - The caches of a session in a file ------------------===//

#include "CacheFile.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "AtomicFile.h"
#include "Sha256.h"
#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

namespace {

constexpr std::uint64_t formatVersion = 1;
constexpr std::size_t digits = 64; // of a hash

/// The file's beginning, as it stands there.
struct Header {
  char magic[8];
  std::uint64_t version;
  char abi[digits], modelId[digits], sha256[digits];
  std::int64_t layers, kvHeads, rowBytes, tokens; // the hash starts here
};
constexpr std::size_t hashedFrom = offsetof(Header, layers);
constexpr char magic[] = "BUDDYKVC";
static_assert(sizeof(Header) == 240 && hashedFrom == 208, "no gaps");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file is little-endian"
#endif

/// A file, mapped to be read.
class Mapping {
public:
  Mapping(int descriptor, std::size_t bytes)
      : size(bytes), start(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0)) {}
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;
  ~Mapping() {
    if (valid())
      munmap(start, size);
  }
  bool valid() const { return start != MAP_FAILED; }
  const char *data() const { return static_cast<const char *>(start); }
  std::string hash() const { return sha256Hex(data() + hashedFrom, size - hashedFrom); }

private:
  std::size_t size;
  void *start;
};

struct CloseFile {
  void operator()(std::FILE *file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

} // namespace

static std::string quoted(const std::string &path) { return "the prompt cache '" + path + "'"; }

static Error damaged(const std::string &path, const std::string &why) {
  return Error(quoted(path) + " is damaged (" + why + "): delete it, and the next run makes a new one");
}

static Error ofAnother(const std::string &path, const std::string &what) {
  return Error(quoted(path) + " belongs to another " + what + ": delete it, or name another file");
}

/// Bytes of so many positions of one layer and head, which stand together in the caches.
static std::size_t bytesOf(const Session &session, std::size_t tokens) {
  return tokens * static_cast<std::size_t>(session.keys().size(3));
}

/// Layers times heads.
static std::size_t headCount(const Session &session) {
  return static_cast<std::size_t>(session.keys().size(0) * session.keys().size(1));
}

/// Checks all that does not need the content.
static void checkHeader(const Header &header, std::size_t fileBytes, const Session &session, const std::string &path) {
  if (header.version != formatVersion)
    throw Error(quoted(path) + " has format version " + std::to_string(header.version) + " and this program reads " +
                std::to_string(formatVersion) + ": delete it, or name another file");
  if (session.abi() != std::string_view(header.abi, digits))
    throw ofAnother(path, "program or another build of it");
  if (session.modelId() != std::string_view(header.modelId, digits))
    throw ofAnother(path, "model");
  const MemRef<std::int8_t, 4> &keys = session.keys();
  const bool sameShape =
      header.layers == keys.size(0) && header.kvHeads == keys.size(1) && header.rowBytes == keys.size(3);
  if (!sameShape)
    throw damaged(path, "its shape is not this model's");
  const std::size_t perToken = sizeof(std::int32_t) + 2 * headCount(session) * bytesOf(session, 1);
  const std::size_t content = fileBytes - sizeof(Header);
  if (header.tokens < 1 || static_cast<std::uint64_t>(header.tokens) > content / perToken ||
      static_cast<std::size_t>(header.tokens) * perToken != content)
    throw damaged(path, "it has " + std::to_string(fileBytes) + " bytes, which do not fit its " +
                            std::to_string(header.tokens) + " tokens");
}

/// Where the positions of a layer and head begin; both are counted as one.
static std::int8_t *positionsOf(MemRef<std::int8_t, 4> &cache, std::size_t head) {
  return cache.data() + head * static_cast<std::size_t>(cache.strides()[1]);
}

/// Copies the first `kept` of `tokens` positions of each head into a cache; returns what is behind them.
static const char *readPositions(const char *bytes, MemRef<std::int8_t, 4> &cache, const Session &session,
                                 std::size_t tokens, std::size_t kept) {
  for (std::size_t head = 0; head < headCount(session); ++head) {
    std::memcpy(positionsOf(cache, head), bytes, bytesOf(session, kept));
    bytes += bytesOf(session, tokens);
  }
  return bytes;
}

/// That a file can be made there is found before any work is done.
static void checkFolder(const std::string &path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (access(folder.c_str(), W_OK) != 0)
    throw Error(quoted(path) + " can not be written (" + std::strerror(errno) + "): name a file in another folder");
}

void llama::restoreCaches(Session &session, const std::string &path) {
  checkFolder(linkTarget(path));
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); // a pipe must not wait
  if (descriptor < 0 && errno == ENOENT)
    return;
  if (descriptor < 0)
    throw Error(quoted(path) + " can not be opened (" + std::strerror(errno) + ")");
  const File file(fdopen(descriptor, "rb"));
  struct stat status;
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode))
    throw Error("'" + path + "' is no regular file, as a prompt cache is: name another file");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  Header header = {};
  const std::size_t read = std::fread(&header, 1, sizeof header, file.get());
  if (std::memcmp(header.magic, magic, std::min(read, sizeof header.magic)) != 0)
    throw Error("'" + path + "' is no prompt cache of buddy-llama-run: name another file, it would be overwritten");
  if (read < sizeof header)
    throw damaged(path, "it has only " + std::to_string(bytes) + " bytes");
  checkHeader(header, bytes, session, path);

  const Mapping mapping(descriptor, bytes);
  if (!mapping.valid())
    throw Error(quoted(path) + " can not be mapped into memory (" + std::strerror(errno) + ")");
  if (mapping.hash() != std::string_view(header.sha256, digits))
    throw damaged(path, "its SHA-256 is another one than it says");
  const auto tokens = static_cast<std::size_t>(header.tokens);
  const auto kept = std::min(tokens, static_cast<std::size_t>(session.contextSize()));
  const char *ids = mapping.data() + sizeof(Header);
  std::vector<std::int32_t> restored(kept);
  std::memcpy(restored.data(), ids, kept * sizeof(std::int32_t));
  const char *keys = ids + tokens * sizeof(std::int32_t);
  const char *values = readPositions(keys, session.keys(), session, tokens, kept);
  readPositions(values, session.values(), session, tokens, kept);
  session.adopt(std::move(restored));
}

/// The content, and the header without its hash. False when it can not be written.
static bool writeContent(std::FILE *file, const Header &header, Session &session) {
  const std::size_t tokens = session.size(), bytes = bytesOf(session, tokens);
  bool worked = std::fwrite(&header, sizeof header, 1, file) == 1 &&
                std::fwrite(session.ids().data(), sizeof(std::int32_t), tokens, file) == tokens;
  for (MemRef<std::int8_t, 4> *cache : {&session.keys(), &session.values()})
    for (std::size_t head = 0; worked && head < headCount(session); ++head)
      worked = std::fwrite(positionsOf(*cache, head), 1, bytes, file) == bytes;
  return worked && std::fflush(file) == 0;
}

/// Writes the hash of what was written into the header.
static bool writeHash(std::FILE *file) {
  const long bytes = std::ftell(file);
  if (bytes < 0)
    return false;
  const Mapping mapping(fileno(file), static_cast<std::size_t>(bytes));
  return mapping.valid() && std::fseek(file, offsetof(Header, sha256), SEEK_SET) == 0 &&
         std::fwrite(mapping.hash().data(), 1, digits, file) == digits;
}

void llama::saveCaches(Session &session, const std::string &path) {
  if (session.size() == 0)
    return;
  Header header = {};
  std::memcpy(header.magic, magic, sizeof header.magic);
  header.version = formatVersion;
  std::memcpy(header.abi, session.abi().data(), digits);
  std::memcpy(header.modelId, session.modelId().data(), digits);
  header.layers = session.keys().size(0);
  header.kvHeads = session.keys().size(1);
  header.rowBytes = session.keys().size(3);
  header.tokens = static_cast<std::int64_t>(session.size());

  AtomicFile file(path);
  const bool worked =
      file.stream() && writeContent(file.stream(), header, session) && writeHash(file.stream()) && file.finish();
  if (!worked)
    throw Error(quoted(path) + " can not be written (" + std::strerror(errno) + "): name a file in another place");
}
