// A pool of threads that shares out the units of one op at a time. Units are claimed, so neighbours and odd core counts only
// cost time; which thread computes a unit never changes its result. The caller takes part and never waits for a thread that
// holds no unit. Threads spin for some tens of microseconds after an op, then sleep. A task is several ops that one of the pool's
// threads calls, while the caller has something else to do; when it has done that it takes that thread's part.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <type_traits>
#include <vector>

#include "duty.hpp"
#include "process.hpp"

namespace octavo {

class ThreadPool {
public:
    // cores: one to pin each further thread to, or empty. Neither the caller's own thread is pinned nor that which calls the ops of
    // tasks: where another program takes the core of either, the others wait for it.
    // Throws std::system_error where the system refuses a thread.
    ThreadPool(int num_threads, const std::vector<int>& cores);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }
    // Whether this is the process that it was made in. In one that was forked from it its threads are not there, and the caller does
    // all: but a task that one of them was at, which nobody can finish.
    bool is_at_home() const { return process_.is_this(); }
    bool is_cut_off() const { return !is_at_home() && started_ && open_ == kTaken && !done_; }
    // The threads that take part in what is run here: `team` of them from `first` on.
    int team() const { return apart_ < 0 ? size() : 1; }
    int first() const { return apart_ < 0 ? 0 : apart_; }

    // Calls body(unit, thread) for each unit in [0, count), thread in [first(), first() + team()). One caller at a time. What a body throws is
    // thrown here, once all threads have left the op; units that had not begun by then are left out.
    template <class Body> void run(int64_t count, const Body& body) {
        if (count <= 1 || team() == 1) {
            for (int64_t i = 0; i < count; ++i) body(i, first());
            return;
        }
        Failure failure;
        auto guarded = [&](int64_t unit, int thread) noexcept {
            if (failure.happened()) return;
            try {
                body(unit, thread);
            } catch (...) {
                failure.keep();
            }
        };
        using Guarded = decltype(guarded);
        submit(count, [](const void* b, int64_t unit, int thread) { (*static_cast<const Guarded*>(b))(unit, thread); }, &guarded);
        failure.rethrow();
    }

    // Calls body(unit) for each unit in [0, count). What a body runs the thread that has called it runs by itself.
    template <class Body> void run_apart(int64_t count, const Body& body) {
        run(count, [&](int64_t unit, int thread) {
            const Apart apart(thread);
            body(unit);
        });
    }

    // A thread in an op has got on. How often all have together, on any thread, at any time.
    void get_on(int thread) { duties_[thread].get_on(); }
    uint64_t progress() const;

    // Lets another thread run task(), which may call run() and throws nothing, or leaves it to finish(). One at a time, and nothing
    // beside it.
    void start(std::function<void()> task);
    // Returns once what was started is done; helps meanwhile. Without one returns at once.
    void finish();

private:
    // Of the thread that it lives on: its number in a unit of run_apart(), or -1.
    static inline thread_local int apart_ = -1;
    struct Apart {
        explicit Apart(int thread) { apart_ = thread; }
        ~Apart() { apart_ = -1; }
        Apart(const Apart&) = delete;
        Apart& operator=(const Apart&) = delete;
    };

    // The first exception of an op.
    class Failure {
    public:
        bool happened() const { return happened_.load(std::memory_order_relaxed); }
        void keep() {
            if (!happened_.exchange(true)) first_ = std::current_exception();
        }
        // After all threads have left the op.
        void rethrow() const {
            if (first_) std::rethrow_exception(first_);
        }

    private:
        std::atomic<bool> happened_{false};
        std::exception_ptr first_;
    };

    using Call = void (*)(const void* body, int64_t unit, int thread);

    void submit(int64_t count, Call call, const void* body);
    // Units of the op that `seen` is of, as claims_ was seen, until none are left; returns how many.
    int64_t work(uint64_t seen, int thread);
    void loop(int thread);
    // Takes part in ops until `enough`; the pool's last thread in tasks, too.
    void help(int thread, const std::atomic<bool>& enough);
    void run_task();
    // Brings one of the threads [first, end) that is put aside while it has something to do to the caller's core.
    bool fetch(int first, int end);
    void wake();
    void stop();

    const Process process_;
    const int size_; // workers ask for it while others of them are still being made
    static constexpr int64_t kTaken = -1;
    // Pauses, a hundred microseconds or less, and some milliseconds.
    static constexpr int kPatience = 2000, kMostPatience = 64 * kPatience;
    std::atomic<int> patience_{kPatience}; // grows where fetching is in vain, as when all cores have other programs
    // One trade at a time in the process: who looked at a thread's cores while another pool moves it would put back those of the moment.
    static inline std::atomic<bool> fetching_{false};
    std::vector<Duty> duties_; // [0]: of the thread that runs a task; else of that with this number in an op
    std::vector<std::thread> workers_;
    bool started_ = false;          // for the caller
    std::function<void()> task_;
    std::atomic<int64_t> open_{kTaken}; // the number of the op that nobody has begun and that is the task
    std::atomic<bool> done_{false};
    // High half: the op's number; low half: units not yet claimed. A claim succeeds only on the op it was meant for, and an op
    // cannot end while a claimed unit is unfinished, so the three fields below are stable for whoever holds a claim. All in one
    // line, which those who wait look at: a line that another core has written takes long to come.
    alignas(64) std::atomic<uint64_t> claims_{0};
    Call call_ = nullptr;
    const void* body_ = nullptr;
    int64_t count_ = 0;
    alignas(64) std::atomic<int64_t> finished_{0}; // units of all ops, but those that the caller did
    alignas(64) std::atomic<uint32_t> wakes_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
};

// Flush-to-zero and denormals-are-zero while it lives, as on the pool's threads: results do not depend on the path taken.
class FlushDenormals {
public:
    FlushDenormals();
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

private:
    uint64_t saved_;
};

} // namespace octavo
