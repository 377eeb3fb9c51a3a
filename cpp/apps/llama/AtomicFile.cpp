//===- AtomicFile.cpp - A file that is there when it is complete ----------===//

#include "AtomicFile.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace buddy;
using namespace buddy::llama;

std::string llama::linkTarget(const std::string &path) {
  std::filesystem::path target = path;
  for (int links = 0; links < 40; ++links) { // as many as Linux follows
    std::error_code noLink;
    const std::filesystem::path next = std::filesystem::read_symlink(target, noLink);
    if (noLink)
      break;
    target = target.parent_path() / next;
  }
  return target.string();
}

/// True for what is there and may not be replaced by a file.
static bool isSpecialFile(const std::string &path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

/// Makes the file that gets the place of `target`, and its permissions if that exists.
static std::FILE *createBeside(const std::string &written, const std::string &target) {
  struct stat status;
  const bool exists = stat(target.c_str(), &status) == 0;
  const mode_t mode = exists ? status.st_mode & 0777 : 0666;
  const int descriptor = open(written.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
  if (descriptor < 0)
    return nullptr;
  if (exists)
    fchmod(descriptor, mode); // what the umask took; where that can not be set, the file is a stricter one
  return fdopen(descriptor, "w+b");
}

// A special file goes by the path that was given: what a link of /proc says is no path.
AtomicFile::AtomicFile(const std::string &path)
    : target(isSpecialFile(path) ? path : linkTarget(path)),
      written(isSpecialFile(path) ? path : target + ".tmp" + std::to_string(getpid())),
      removed(written == target ? nullptr : written.c_str()),
      file(written == target ? std::fopen(written.c_str(), "wbe") : createBeside(written, target)) {}

AtomicFile::~AtomicFile() {
  if (file && written != target) // not finished
    unlink(written.c_str());
}

bool AtomicFile::finish() {
  const bool worked =
      std::fclose(file.release()) == 0 && (written == target || std::rename(written.c_str(), target.c_str()) == 0);
  if (worked || written == target)
    return worked;
  const int reason = errno;
  unlink(written.c_str());
  errno = reason;
  return false;
}
