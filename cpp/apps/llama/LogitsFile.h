//===- LogitsFile.h - Rows of logits as .npy ------------------------------===//

#ifndef BUDDY_APPS_LLAMA_LOGITSFILE_H
#define BUDDY_APPS_LLAMA_LOGITSFILE_H

#include <cstdint>
#include <string>

#include "AtomicFile.h"

namespace buddy::llama {

/// Writes a float32 array (rows, columns) in NumPy's format 1.0, row by row. The file gets its name when it is
/// complete, see AtomicFile.h.
class LogitsFile {
public:
  /// Throws Error, as all members do, when the file can not be written.
  LogitsFile(std::string path, std::int64_t columns);
  LogitsFile(const LogitsFile &) = delete;
  LogitsFile &operator=(const LogitsFile &) = delete;

  void append(const float *row);
  void finish();

private:
  void writeHeader();
  void check(bool worked) const;

  std::string path;
  std::int64_t width, rows = 0;
  AtomicFile file;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_LOGITSFILE_H
