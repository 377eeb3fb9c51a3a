//===- CpuQuota.h - The CPU quota of this process's cgroups ---------------===//

#ifndef BUDDY_RUNTIME_CPUQUOTA_H
#define BUDDY_RUNTIME_CPUQUOTA_H

#include <string>

namespace buddy {

/// The smallest quota of the process's cgroups and their ancestors, in CPUs rounded up; 0 when there is none.
/// `membership` is /proc/self/cgroup's path, `root` the place where cgroup file systems are mounted (/sys/fs/cgroup).
int cgroupCpuLimit(const std::string &membership, const std::string &root);

} // namespace buddy

#endif // BUDDY_RUNTIME_CPUQUOTA_H
