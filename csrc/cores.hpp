// Cores that a thread may run on, as the system takes them.
#pragma once

#include <sched.h>

namespace octavo {

inline cpu_set_t only(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return set;
}

} // namespace octavo
