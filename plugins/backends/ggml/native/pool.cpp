// Threads that share one kernel call: its parts are taken one by one, so a slow or interrupted thread holds up only
// the part it has. Idle threads spin for a moment, then sleep: another program on the same cores loses no time to us,
// and we lose little to it. Which thread computes a part changes no bit of it.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#include "ts.h"

#if defined(_WIN32)
#define TS_EXPORT extern "C" __declspec(dllexport)
#else
#define TS_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

constexpr int SPINS = 4000;  // some 40 microseconds: longer than the gap between two calls of one graph

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#endif
}

}  // namespace

struct ts_pool {
    // The call under way: number of the call (32 bits), its parts (16), the next part to take (16). A part is taken by
    // adding one to all three at once, so no thread can take a part of another call than the one it read.
    std::atomic<uint64_t> ticket{0};
    std::atomic<int32_t> done{0};
    std::atomic<bool> closing{false};
    ts_kernel kernel = nullptr;
    ts_tensor *dst = nullptr;
    void *args = nullptr;

    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<int32_t> sleepers{0};
    std::vector<std::thread> workers;

    static bool open(uint64_t t) { return (t & 0xffff) < (t >> 16 & 0xffff); }

    // Take and compute parts until there are none.
    void work() {
        for (uint64_t t = ticket.load(std::memory_order_acquire); open(t);) {
            if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
            kernel(dst, (int)(t & 0xffff), (int)(t >> 16 & 0xffff), args);
            done.fetch_add(1, std::memory_order_release);
            t = ticket.load(std::memory_order_acquire);
        }
    }

    bool ready() const { return closing.load() || open(ticket.load()); }

    void serve() {
        while (!closing.load(std::memory_order_acquire)) {
            for (int i = 0; i < SPINS && !ready(); ++i) relax();
            if (!ready()) {
                std::unique_lock<std::mutex> lock(mutex);
                sleepers.fetch_add(1);
                wake.wait(lock, [this] { return ready(); });
                sleepers.fetch_sub(1, std::memory_order_relaxed);
            }
            work();
        }
    }

    void run(ts_kernel fn, ts_tensor *out, int parts, void *arguments) {
        kernel = fn;
        dst = out;
        args = arguments;
        done.store(0, std::memory_order_relaxed);
        const uint64_t call = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
        // In one total order with a worker's count of sleepers and its look at the ticket, so that none sleeps through this.
        ticket.store(call << 32 | (uint64_t)parts << 16);
        if (sleepers.load()) {
            { std::lock_guard<std::mutex> lock(mutex); }
            wake.notify_all();
        }
        work();
        for (int i = 0; done.load(std::memory_order_acquire) < parts; ++i)
            if (i < SPINS) relax();
            else std::this_thread::yield();
    }

    void close() {
        closing.store(true, std::memory_order_release);
        { std::lock_guard<std::mutex> lock(mutex); }
        wake.notify_all();
        for (std::thread &worker : workers) worker.join();
    }
};

TS_EXPORT ts_pool *ts_pool_create(int32_t threads) {
    ts_pool *pool = new (std::nothrow) ts_pool;
    for (int32_t i = 1; pool && i < threads; ++i) pool->workers.emplace_back([pool] { pool->serve(); });
    return pool;
}

TS_EXPORT void ts_pool_destroy(ts_pool *pool) {
    if (pool) pool->close();
    delete pool;
}

TS_EXPORT void ts_parallel(ts_tensor *dst, int ith, int, void *userdata) {
    const ts_call *call = (const ts_call *)userdata;
    if (ith == 0) call->pool->run(call->kernel, dst, call->parts, call->args);
}
