// A process and its threads.
#pragma once

#include <unistd.h>

#include <thread>
#include <utility>

namespace octavo {

// The process that it was made in.
class Process {
public:
    bool is_this() const { return getpid() == id_; }

private:
    const pid_t id_ = getpid();
};

// Waits for the end of a thread of `process`. In a child that was forked from it there is no such thread, and waiting may never end:
// there it is forgotten.
inline void join(std::thread& thread, const Process& process) {
    if (process.is_this()) thread.join();
    else static_cast<void>(new std::thread(std::move(thread)));
}

} // namespace octavo
