#include "duty.hpp"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>

#include "cores.hpp"
#include "pause.hpp"

namespace octavo {

namespace {

constexpr int kLook = 100; // pauses: some microseconds

// Nanoseconds that a thread has run; the system brings the figure up to date for who asks. Nothing where it does not know.
std::optional<int64_t> has_run(pid_t thread) {
    const clockid_t clock = ~static_cast<clockid_t>(thread) << 3 | 6; // as pthread_getcpuclockid has it: of one thread, running
    timespec time;
    if (clock_gettime(clock, &time) != 0) return std::nullopt;
    return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

// Where a thread runs or waits to, or -1. Of other threads than one's own only a file tells: in its 39th field, the 37th after the
// name, which may have blanks and ends with the last parenthesis.
int core_of(pid_t thread) {
    char text[1024];
    std::snprintf(text, sizeof text, "/proc/self/task/%d/stat", static_cast<int>(thread));
    std::FILE* file = std::fopen(text, "r");
    if (!file) return -1;
    text[std::fread(text, 1, sizeof text - 1, file)] = 0;
    std::fclose(file);
    const char* field = std::strrchr(text, ')');
    for (int i = 0; field && i < 37; ++i) field = std::strchr(field + 1, ' ');
    int core;
    return field && std::sscanf(field, "%d", &core) == 1 ? core : -1;
}

// A thread that may run on several cores may do so afterwards, too; one that is pinned is pinned there.
bool move(pid_t thread, const cpu_set_t& before, const cpu_set_t& there) {
    if (sched_setaffinity(thread, sizeof there, &there) != 0) return false;
    if (CPU_COUNT(&before) > 1) sched_setaffinity(thread, sizeof before, &before);
    return true;
}

} // namespace

int Duty::self() { return gettid(); }

Duty::Trade Duty::trade_cores() const {
    const pid_t other = thread_.load(std::memory_order_relaxed);
    const std::optional<int64_t> before = other ? has_run(other) : std::nullopt;
    if (!before) return Trade::none;
    for (int i = 0; i < kLook; ++i) pause();
    if (has_run(other) != before) return Trade::none;
    cpu_set_t own, others;
    if (sched_getaffinity(0, sizeof own, &own) != 0 || sched_getaffinity(other, sizeof others, &others) != 0) return Trade::none;
    const int here = sched_getcpu(), there = core_of(other);
    bool moved;
    if (here == there) { // both wait for one core
        cpu_set_t elsewhere = own;
        CPU_CLR(here, &elsewhere);
        moved = move(0, own, elsewhere);
    } else {
        moved = there >= 0 && move(other, others, only(here)) && move(0, own, only(there));
    }
    if (!moved) return Trade::none;
    return has_run(other) != before ? Trade::good : Trade::vain;
}

} // namespace octavo
