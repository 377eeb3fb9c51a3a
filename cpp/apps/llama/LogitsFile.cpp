//===- LogitsFile.cpp - Rows of logits as .npy ----------------------------===//

#include "LogitsFile.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

// Magic, version and length take 10 bytes; padded, so that the number of rows can be filled in at the end.
static constexpr std::size_t headerBytes = 128;

/// A device or a pipe is written itself; nothing may be put in its place.
static bool isSpecialFile(const std::string &path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

LogitsFile::LogitsFile(std::string path, std::int64_t columns)
    : finalPath(std::move(path)), writtenPath(isSpecialFile(finalPath) ? finalPath : finalPath + ".tmp"),
      width(columns), file(std::fopen(writtenPath.c_str(), "wb")) {
  check(file != nullptr);
  writeHeader();
}

LogitsFile::~LogitsFile() {
  if (file && writtenPath != finalPath) // not finished
    unlink(writtenPath.c_str());
}

void LogitsFile::check(bool worked) const {
  if (!worked)
    throw Error("the logits can not be written to '" + finalPath + "' (" + std::strerror(errno) + ")");
}

void LogitsFile::writeHeader() {
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(headerBytes - 10);
  header += '\0';
  header += "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
            std::to_string(width) + "), }";
  header.resize(headerBytes - 1, ' ');
  header += '\n';
  check(std::fwrite(header.data(), 1, header.size(), file.get()) == header.size());
}

void LogitsFile::append(const float *row) {
  const std::size_t count = static_cast<std::size_t>(width);
  check(std::fwrite(row, sizeof(float), count, file.get()) == count);
  ++rows;
}

void LogitsFile::finish() {
  check(std::fseek(file.get(), 0, SEEK_SET) == 0);
  writeHeader();
  check(std::fclose(file.release()) == 0);
  if (writtenPath != finalPath)
    check(std::rename(writtenPath.c_str(), finalPath.c_str()) == 0);
}
