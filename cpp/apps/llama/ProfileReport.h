//===- ProfileReport.h - Where the time of a run went ---------------------===//

#ifndef BUDDY_APPS_LLAMA_PROFILEREPORT_H
#define BUDDY_APPS_LLAMA_PROFILEREPORT_H

#include <cstdint>
#include <string>
#include <vector>

#include "JsonObject.h"

namespace buddy::llama {

/// One kernel of an entry point.
struct KernelTime {
  std::string name;
  std::int64_t calls = 0;
  double seconds = 0;
  std::int64_t bytes = 0;         // that a call reads of the weights; 0: not known
  std::int64_t flopsPerToken = 0; // multiplications and additions of a call for each row of activations; 0: not known

  double gigabytesPerSecond() const {
    return seconds > 0 ? static_cast<double>(bytes) * static_cast<double>(calls) / seconds / 1e9 : 0;
  }
};

/// What was measured of one entry point.
struct EntryProfile {
  std::string entry;
  std::int64_t calls = 0;
  double seconds = 0;              // of the whole calls
  std::vector<KernelTime> kernels; // those that took longest first
};

/// Reads what the run time measured of a module; nothing was of one that is not there (null). A line of `names` is a
/// region's name, and behind tabs, if there are any, the bytes that it reads at each call and its operations for each
/// row of activations.
EntryProfile profileOfEntry(std::string entry, const char *names);

/// A table for people, and the same as JSON.
std::string profileTable(const std::vector<EntryProfile> &profiles);
std::vector<JsonObject> profileJson(const std::vector<EntryProfile> &profiles);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_PROFILEREPORT_H
