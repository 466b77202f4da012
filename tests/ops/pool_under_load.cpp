// Ops and tasks one after the other for some seconds, with nothing between them: where a thread is put aside at a bad moment, the
// others must not wait for ever. Exits with 1 when nothing gets on any more, with 2 when a unit is lost or computed twice.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "thread_pool.hpp"

namespace {

constexpr int kOps = 3, kStill = 10; // looks, a second apart
std::atomic<uint64_t> beats{0};

void watch() {
    uint64_t last = 0;
    for (int still = 0; still < kStill;) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        const uint64_t now = beats;
        still = now == last ? still + 1 : 0;
        last = now;
    }
    std::_Exit(1);
}

} // namespace

int main(int, char** arguments) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(arguments[1]));
    octavo::ThreadPool pool(2, {});
    std::thread(watch).detach();
    std::atomic<int> units{0};
    const auto count = [&](int64_t, int) { ++units; };
    while (std::chrono::steady_clock::now() < end) {
        units = 0;
        pool.run(2, count);
        pool.start([&] {
            for (int op = 1; op < kOps; ++op) pool.run(2, count);
        });
        pool.finish();
        if (units != 2 * kOps) std::_Exit(2);
        ++beats;
    }
    std::_Exit(0); // the watch goes on
}
