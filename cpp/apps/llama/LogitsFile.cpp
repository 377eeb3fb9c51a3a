//===- LogitsFile.cpp - Rows of logits as .npy ----------------------------===//

#include "LogitsFile.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

// Magic, version and length take 10 bytes; padded, so that the number of rows can be filled in at the end.
static constexpr std::size_t headerBytes = 128;

LogitsFile::LogitsFile(std::string itsPath, std::int64_t columns)
    : path(std::move(itsPath)), width(columns), file(path) {
  check(file.stream() != nullptr);
  writeHeader();
}

void LogitsFile::check(bool worked) const {
  if (!worked)
    throw Error("the logits can not be written to '" + path + "' (" + std::strerror(errno) + ")");
}

void LogitsFile::writeHeader() {
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(headerBytes - 10);
  header += '\0';
  header += "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
            std::to_string(width) + "), }";
  header.resize(headerBytes - 1, ' ');
  header += '\n';
  check(std::fwrite(header.data(), 1, header.size(), file.stream()) == header.size());
}

void LogitsFile::append(const float *row) {
  const std::size_t count = static_cast<std::size_t>(width);
  check(std::fwrite(row, sizeof(float), count, file.stream()) == count);
  ++rows;
}

void LogitsFile::finish() {
  check(std::fseek(file.stream(), 0, SEEK_SET) == 0);
  writeHeader();
  check(file.finish());
}
