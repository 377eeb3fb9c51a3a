//===- AtomicFile.h - A file that is there when it is complete ------------===//

#ifndef BUDDY_APPS_LLAMA_ATOMICFILE_H
#define BUDDY_APPS_LLAMA_ATOMICFILE_H

#include <cstdio>
#include <memory>
#include <string>

#include "Interrupt.h"

namespace buddy::llama {

/// Where symbolic links lead to, also when nothing is there yet. Of links that go in circles, one of them.
std::string linkTarget(const std::string &path);

/// A file that is written beside its place and renamed when it is complete, so that nothing half written ever stands
/// there; it goes when this does, or when Ctrl-C ends the process. It is made where symbolic links lead to, with the
/// permissions of the file whose place it gets. A device or a pipe is written itself. There is one at a time.
class AtomicFile {
public:
  /// On failure errno says why, and stream() is null.
  explicit AtomicFile(const std::string &path);
  AtomicFile(const AtomicFile &) = delete;
  AtomicFile &operator=(const AtomicFile &) = delete;
  ~AtomicFile();

  /// To be written and read; owned by this.
  std::FILE *stream() const noexcept { return file.get(); }

  /// Closes the file and gives it its name. Returns false, with errno, when that does not work.
  bool finish();

private:
  struct Close {
    void operator()(std::FILE *opened) const { std::fclose(opened); }
  };

  std::string target, written; // the same for what is written itself
  RemovedOnExit removed;
  std::unique_ptr<std::FILE, Close> file;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_ATOMICFILE_H
