#include "thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {

namespace {

constexpr auto kSpin = std::chrono::microseconds(60);

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void pin(std::thread& thread, int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof set, &set); // a refusal costs speed only
}

} // namespace

FlushDenormals::FlushDenormals() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr(static_cast<unsigned>(saved_) | 0x8040u);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
#else
    saved_ = 0;
#endif
}

FlushDenormals::~FlushDenormals() {
#if defined(__x86_64__)
    _mm_setcsr(static_cast<unsigned>(saved_));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(saved_));
#endif
}

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cores) {
    try {
        for (int i = 1; i < num_threads; ++i) {
            workers_.emplace_back([this, i] { loop(i); });
            if (static_cast<int>(cores.size()) == num_threads) pin(workers_.back(), cores[i]);
        }
    } catch (...) {
        stop(); // a thread that is destroyed while it runs would end the process
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stopping_ = true;
    ++epoch_;
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::submit(int64_t count, Call call, const void* body) {
    call_ = call;
    body_ = body;
    count_ = count;
    finished_.store(0, std::memory_order_relaxed);
    uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    claims_.store(static_cast<uint64_t>(epoch) << 32 | static_cast<uint32_t>(count), std::memory_order_release);
    epoch_.store(epoch);
    if (sleepers_.load() > 0) epoch_.notify_all();
    work(epoch, 0);
    for (int spins = 0; finished_.load(std::memory_order_acquire) != count;) {
        if (++spins < 20000) pause();
        else sched_yield(); // the thread that holds the last unit may want this core
    }
}

bool ThreadPool::work(uint32_t epoch, int thread) {
    bool any = false;
    for (uint64_t seen = claims_.load(std::memory_order_acquire);;) {
        if (static_cast<uint32_t>(seen >> 32) != epoch || static_cast<uint32_t>(seen) == 0) return any;
        if (!claims_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) continue;
        call_(body_, count_ - static_cast<uint32_t>(seen), thread);
        finished_.fetch_add(1, std::memory_order_acq_rel);
        any = true;
        seen = claims_.load(std::memory_order_acquire);
    }
}

void ThreadPool::loop(int thread) {
    FlushDenormals flush;
    uint32_t done = 0;
    while (true) {
        auto deadline = std::chrono::steady_clock::now() + kSpin;
        uint32_t epoch = epoch_.load(std::memory_order_acquire);
        for (int spins = 1; epoch == done; ++spins) {
            pause();
            epoch = epoch_.load(std::memory_order_acquire);
            if (spins % 64 == 0 && std::chrono::steady_clock::now() > deadline) break;
        }
        if (epoch == done) {
            ++sleepers_;
            epoch_.wait(done);
            --sleepers_;
            continue;
        }
        if (stopping_) return;
        work(epoch, thread);
        done = epoch;
    }
}

} // namespace octavo
