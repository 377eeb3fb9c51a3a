//===- CpuQuota.cpp - The CPU quota of this process's cgroups -------------===//
//
// A line of /proc/self/cgroup is HIERARCHY:CONTROLLERS:PATH. Version 2 has hierarchy 0 and no controllers, and keeps
// "QUOTA PERIOD" (or "max PERIOD") in cpu.max. Version 1 names the controller cpu and keeps the two in two files, -1
// for no quota. Inside a container PATH may be the host's while the mount shows the container's own part: folders that
// do not exist are passed over, and the root is always read.
//
//===----------------------------------------------------------------------===//

#include "CpuQuota.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

using namespace buddy;

/// quota / period in CPUs, rounded up; 0 when either is no positive number.
static int cpusOf(const std::string &quota, const std::string &period) {
  std::istringstream quotaText(quota), periodText(period);
  long long quotaMicros = 0, periodMicros = 0;
  if (!(quotaText >> quotaMicros) || !(periodText >> periodMicros) || quotaMicros <= 0 || periodMicros <= 0)
    return 0;
  return static_cast<int>(std::min<long long>((quotaMicros - 1) / periodMicros + 1, 1 << 20));
}

static std::string firstWord(const std::string &file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

/// The quota that one folder of a cgroup file system states.
static int quotaOfFolder(const std::string &folder) {
  std::ifstream stream(folder + "/cpu.max");
  std::string quota, period;
  if (stream >> quota >> period)
    return cpusOf(quota, period);
  return cpusOf(firstWord(folder + "/cpu.cfs_quota_us"), firstWord(folder + "/cpu.cfs_period_us"));
}

static bool listsCpu(const std::string &controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

int buddy::cgroupCpuLimit(const std::string &membership, const std::string &root) {
  int limit = 0;
  const auto narrow = [&limit](int cpus) {
    if (cpus > 0)
      limit = limit ? std::min(limit, cpus) : cpus;
  };
  std::ifstream stream(membership);
  std::string line;
  while (std::getline(stream, line)) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos)
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::vector<std::string> mounts;
    if (controllers.empty())
      mounts = {root, root + "/unified"};
    else if (listsCpu(controllers))
      mounts = {root + "/cpu", root + "/" + controllers};
    for (const std::string &mount : mounts) {
      std::string path = line.substr(second + 1);
      for (; path.size() > 1; path.resize(path.rfind('/')))
        narrow(quotaOfFolder(mount + path));
      narrow(quotaOfFolder(mount));
    }
  }
  return limit;
}
