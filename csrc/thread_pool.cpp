#include "thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cores.hpp"
#include "pause.hpp"

namespace octavo {

namespace {

constexpr auto kSpin = std::chrono::microseconds(60);
// A caller waits for others by so many pauses, about a millisecond, then by yields up to so many, then by sleeps that count for so
// many: who waits for long must not look like one that computes, neither to the scheduler nor to who watches the process.
constexpr int64_t kPauses = 20000, kYields = 40000, kPausesOfSleep = 5000;
constexpr auto kSleep = std::chrono::microseconds(200);

void pin(std::thread& thread, int core) {
    const cpu_set_t set = only(core);
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

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cores) : size_(num_threads), duties_(num_threads) {
    try {
        for (int i = 1; i < num_threads; ++i) {
            workers_.emplace_back([this, i] { loop(i); });
            if (static_cast<int>(cores.size()) == num_threads && i + 1 < num_threads) pin(workers_.back(), cores[i]);
        }
    } catch (...) {
        stop(); // a thread that is destroyed while it runs would end the process
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stopping_ = true;
    ++wakes_;
    wakes_.notify_all();
    for (std::thread& worker : workers_) join(worker, process_);
}

void ThreadPool::wake() {
    if (sleepers_.load() > 0) {
        ++wakes_;
        wakes_.notify_all();
    }
}

void ThreadPool::submit(int64_t count, Call call, const void* body) {
    const int64_t finished = finished_.load(std::memory_order_relaxed);
    const uint64_t op = (claims_.load(std::memory_order_relaxed) >> 32) + 1;
    call_ = call;
    body_ = body;
    count_ = count;
    claims_.store(op << 32 | static_cast<uint64_t>(count - 1), std::memory_order_release); // the first unit is the caller's
    // Whoever falls asleep at this moment sleeps through this op, which does not need him, and is woken for the next.
    if (sleepers_.load(std::memory_order_relaxed) > 0) wake();
    call(body, 0, 0);
    const int64_t others = count - 1 - work(claims_.load(std::memory_order_relaxed), 0);
    for (int64_t waited = 0; finished_.load(std::memory_order_acquire) - finished != others;) {
        const bool sleeps = waited >= kYields;
        if (waited < kPauses) pause();
        else if (!sleeps) sched_yield(); // the thread that holds the last unit may want this core
        else std::this_thread::sleep_for(kSleep);
        const int64_t passed = sleeps ? kPausesOfSleep : 1;
        waited += passed;
        if (waited % patience_.load(std::memory_order_relaxed) < passed) fetch(1, size());
    }
}

int64_t ThreadPool::work(uint64_t seen, int thread) {
    const uint64_t op = seen >> 32;
    int64_t done = 0;
    while (seen >> 32 == op && static_cast<uint32_t>(seen) != 0) {
        if (!claims_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        call_(body_, count_ - static_cast<uint32_t>(seen), thread);
        ++done;
        if (thread > 0) finished_.fetch_add(1, std::memory_order_acq_rel);
        seen = claims_.load(std::memory_order_acquire);
    }
    return done;
}

uint64_t ThreadPool::progress() const {
    uint64_t all = 0;
    for (const Duty& duty : duties_) all += duty.progress();
    return all;
}

void ThreadPool::start(std::function<void()> task) {
    task_ = std::move(task);
    started_ = true;
    done_ = false;
    const uint32_t op = static_cast<uint32_t>(claims_.load(std::memory_order_relaxed) >> 32) + 1;
    open_ = op;
    claims_.store(uint64_t{op} << 32); // an op without units: whoever waits looks up
    wake();
}

void ThreadPool::finish() {
    if (!started_) return;
    FlushDenormals flush;
    if (open_.exchange(kTaken) != kTaken) {
        run_task();
        // Who has begun to trade cores with this thread may be put aside between its two calls: what the caller makes next, as a
        // child, would have one core for good. Whoever looks at its duty from now on finds none.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        while (fetching_.load(std::memory_order_acquire) && is_at_home()) sched_yield();
    } else {
        help(size() - 1, done_);
    }
    started_ = false;
    task_ = nullptr;
}

void ThreadPool::run_task() {
    duties_[0].begin(Duty::self());
    task_();
    duties_[0].end();
    done_ = true;
    wake();
}

bool ThreadPool::fetch(int first, int end) {
    if (fetching_.exchange(true, std::memory_order_acquire)) return false;
    std::atomic_thread_fence(std::memory_order_seq_cst); // with that of finish(): either sees the other
    Duty::Trade trade = Duty::Trade::none;
    for (int thread = first; thread < end && trade == Duty::Trade::none; ++thread) trade = duties_[thread].trade_cores();
    const int patience = patience_.load(std::memory_order_relaxed);
    if (trade == Duty::Trade::good) patience_.store(std::max(patience / 2, kPatience), std::memory_order_relaxed);
    if (trade == Duty::Trade::vain) patience_.store(std::min(patience * 4, kMostPatience), std::memory_order_relaxed);
    fetching_.store(false, std::memory_order_release);
    return trade != Duty::Trade::none;
}

void ThreadPool::loop(int thread) {
    pthread_setname_np(pthread_self(), "octavo-compute"); // for who looks at the process
    FlushDenormals flush;
    help(thread, stopping_);
}

void ThreadPool::help(int thread, const std::atomic<bool>& enough) {
    const bool takes_tasks = &enough == &stopping_ && thread == size() - 1;
    const int self = Duty::self();
    uint64_t last = 0; // op
    while (!enough.load(std::memory_order_acquire)) {
        const auto deadline = std::chrono::steady_clock::now() + kSpin;
        uint64_t seen = claims_.load(std::memory_order_acquire);
        for (int spins = 1; seen >> 32 == last && !enough.load(std::memory_order_acquire); ++spins) {
            pause();
            seen = claims_.load(std::memory_order_acquire);
            if (spins % 64 == 0 && std::chrono::steady_clock::now() > deadline) break;
        }
        if (seen >> 32 == last) {
            if (patience_.load(std::memory_order_relaxed) == kPatience && fetch(0, 1)) continue;
            const uint32_t wakes = wakes_.load();
            ++sleepers_;
            if (claims_.load() >> 32 == last && !enough) wakes_.wait(wakes);
            --sleepers_;
            continue;
        }
        last = seen >> 32;
        // Not before its op is there: the ops of whoever began earlier would be lost when the caller of start() writes it.
        int64_t task = static_cast<int64_t>(last);
        if (takes_tasks && open_.load(std::memory_order_relaxed) == task && open_.compare_exchange_strong(task, kTaken)) run_task();
        else {
            duties_[thread].begin(self);
            work(seen, thread);
            duties_[thread].end();
        }
    }
}

} // namespace octavo
