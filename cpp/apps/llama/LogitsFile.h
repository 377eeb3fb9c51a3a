//===- LogitsFile.h - Rows of logits as .npy ------------------------------===//

#ifndef BUDDY_APPS_LLAMA_LOGITSFILE_H
#define BUDDY_APPS_LLAMA_LOGITSFILE_H

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace buddy::llama {

/// Writes a float32 array (rows, columns) in NumPy's format 1.0, row by row. The file gets its name when it is
/// complete; until then it stands beside it.
class LogitsFile {
public:
  /// Throws Error, as all members do, when the file can not be written.
  LogitsFile(std::string path, std::int64_t columns);
  LogitsFile(const LogitsFile &) = delete;
  LogitsFile &operator=(const LogitsFile &) = delete;
  ~LogitsFile();

  void append(const float *row);
  void finish();

private:
  struct Close {
    void operator()(std::FILE *opened) const { std::fclose(opened); }
  };

  void writeHeader();
  void check(bool worked) const;

  std::string finalPath, writtenPath;
  std::int64_t width, rows = 0;
  std::unique_ptr<std::FILE, Close> file;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_LOGITSFILE_H
