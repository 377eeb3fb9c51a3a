//===- ProfileReport.cpp - Where the time of a run went -------------------===//

#include "ProfileReport.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <utility>

#include "buddy/Profile.h"

using namespace buddy;
using namespace buddy::llama;

static std::vector<std::string_view> linesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// Takes what stands before the next tab, or all.
static std::string_view takeField(std::string_view &line) {
  const std::size_t end = std::min(line.find('\t'), line.size());
  const std::string_view field = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return field;
}

static std::int64_t numberIn(std::string_view field) {
  std::int64_t number = 0;
  std::from_chars(field.data(), field.data() + field.size(), number);
  return number;
}

/// The name, the bytes and the operations of a line.
static KernelTime kernelOf(std::string_view line) {
  KernelTime kernel;
  kernel.name = takeField(line);
  kernel.bytes = numberIn(takeField(line));
  kernel.flopsPerToken = numberIn(takeField(line));
  return kernel;
}

EntryProfile llama::profileOfEntry(std::string entry, const char *names) {
  EntryProfile profile;
  profile.entry = std::move(entry);
  const std::vector<std::string_view> lines = linesOf(names ? names : "");
  for (const RegionTime &time : profileOf(names)) {
    if (time.region == wholeCallRegion) {
      profile.calls = time.calls;
      profile.seconds = time.seconds;
      continue;
    }
    const auto index = static_cast<std::size_t>(time.region);
    KernelTime kernel;
    if (index < lines.size())
      kernel = kernelOf(lines[index]);
    else
      kernel.name = "region " + std::to_string(time.region);
    kernel.calls = time.calls;
    kernel.seconds = time.seconds;
    profile.kernels.push_back(std::move(kernel));
  }
  std::stable_sort(profile.kernels.begin(), profile.kernels.end(),
                   [](const KernelTime &a, const KernelTime &b) { return a.seconds > b.seconds; });
  return profile;
}

static double share(const KernelTime &kernel, const EntryProfile &profile) {
  return profile.seconds > 0 ? kernel.seconds / profile.seconds : 0;
}

/// The time of an entry point that belongs to no region.
static double restSeconds(const EntryProfile &profile) {
  double rest = profile.seconds;
  for (const KernelTime &kernel : profile.kernels)
    rest -= kernel.seconds;
  return std::max(rest, 0.0);
}

static std::string rowText(const KernelTime &kernel, const EntryProfile &profile, bool withRates) {
  char numbers[128], rate[32] = "";
  if (withRates && kernel.bytes > 0)
    std::snprintf(rate, sizeof rate, "%8.1f", kernel.gigabytesPerSecond());
  else if (withRates)
    std::snprintf(rate, sizeof rate, "%8s", "");
  std::snprintf(numbers, sizeof numbers, "%8" PRId64 " %10.2f %6.1f%%", kernel.calls, kernel.seconds * 1e3,
                share(kernel, profile) * 100);
  return std::string(numbers) + rate + "  " + kernel.name + "\n";
}

std::string llama::profileTable(const std::vector<EntryProfile> &profiles) {
  std::string text;
  for (const EntryProfile &profile : profiles) {
    char title[160];
    std::snprintf(title, sizeof title, ": %" PRId64 " calls, %.2f ms\n", profile.calls, profile.seconds * 1e3);
    const bool withRates = std::any_of(profile.kernels.begin(), profile.kernels.end(),
                                       [](const KernelTime &kernel) { return kernel.bytes > 0; });
    text += "profile of " + profile.entry + title + "   calls         ms   share" + (withRates ? "    GB/s" : "") +
            "  region\n";
    for (const KernelTime &kernel : profile.kernels)
      text += rowText(kernel, profile, withRates);
    text += rowText({"(between regions)", profile.calls, restSeconds(profile), 0, 0}, profile, withRates);
  }
  return text;
}

std::vector<JsonObject> llama::profileJson(const std::vector<EntryProfile> &profiles) {
  std::vector<JsonObject> entries;
  for (const EntryProfile &profile : profiles) {
    std::vector<JsonObject> regions;
    for (const KernelTime &kernel : profile.kernels) {
      JsonObject &region = regions.emplace_back();
      region.add("name", kernel.name);
      region.add("calls", kernel.calls);
      region.add("seconds", kernel.seconds);
      region.add("share", share(kernel, profile));
      if (kernel.bytes > 0) {
        region.add("bytes_per_call", kernel.bytes);
        region.add("gigabytes_per_second", kernel.gigabytesPerSecond());
      }
      if (kernel.flopsPerToken > 0)
        region.add("flops_per_token", kernel.flopsPerToken);
    }
    JsonObject &entry = entries.emplace_back();
    entry.add("entry", profile.entry);
    entry.add("calls", profile.calls);
    entry.add("seconds", profile.seconds);
    entry.add("regions", regions);
  }
  return entries;
}
