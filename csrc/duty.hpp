// What others may have to wait for: a thread that has something to do which they need. Where the system has put it aside for
// another program (the holder of a lock preempted, in the words of the field), who waits trades cores with it.
#pragma once

#include <atomic>
#include <cstdint>

namespace octavo {

class alignas(64) Duty {
public:
    // The calling thread, as the system numbers threads.
    static int self();
    // Of one thread at a time.
    void begin(int thread) { thread_.store(thread, std::memory_order_relaxed); }
    void end() { thread_.store(0, std::memory_order_relaxed); }
    // good: the other one runs now, or has. vain: neither core was free for it.
    enum class Trade { none, good, vain };
    // Where a thread has this duty and does not run: moves it to the caller's core and the caller to that where it was, whose
    // other program then goes on beside the one who has nothing to do. Takes tens of microseconds, or until the caller's turn comes.
    Trade trade_cores() const;
    // Of the thread with this number in ops; one at a time.
    void get_on() { progress_.store(progress() + 1, std::memory_order_relaxed); }
    uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }

private:
    std::atomic<int> thread_{0};
    std::atomic<uint64_t> progress_{0};
};

} // namespace octavo
