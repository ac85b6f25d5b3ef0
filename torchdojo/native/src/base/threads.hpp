// Threads that share the blocks of a call. OpenMP is not used: a second runtime of it beside PyTorch's crashes on macOS, and a wheel would have
// to bring one.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace torchdojo {

// One pool per process. Its threads are started when a call first asks for so many, and sleep between calls.
//
// A call is a list entry on the stack of its caller, who works, too. Threads enter and leave an entry under the lock, so the caller knows when
// nobody looks at it any longer. Several callers at once share the threads; none waits for another one's blocks.
class ThreadPool {
public:
    // Calls work(context, k) for k in 0 ... count - 1 on at most `threads` threads, the caller among them. Returns when all are done.
    void run(int64_t count, int64_t threads, void (*work)(void *, int64_t), void *context) {
        Call call{count, threads - 1, work, context};
        {
            std::lock_guard<std::mutex> guard(lock);
            start(threads - 1);
            call.next = calls;
            calls = &call;
            ++published;
        }
        wake.notify_all();
        call.work_off();
        std::unique_lock<std::mutex> guard(lock);
        Call **place = &calls;
        while (*place != &call) place = &(*place)->next;
        *place = call.next;
        // The last blocks are on their way. Most calls end within the time that a sleep would take.
        for (int spins = 0; call.inside && spins < caller_spins; ++spins) {
            guard.unlock();
            relax();
            guard.lock();
        }
        done.wait(guard, [&] { return !call.inside; });
    }

    static ThreadPool &instance() {
        static const bool renewed = renew_in_children();
        (void)renewed;
        return *current();
    }

private:
    struct Call {
        const int64_t count;
        int64_t places;  // for more threads; guarded by the lock
        void (*const work)(void *, int64_t);
        void *const context;
        std::atomic<int64_t> following{0};  // the block that comes next
        int64_t inside = 0;  // threads of the pool that work here; guarded by the lock
        Call *next = nullptr;

        bool open() const { return places > 0 && following.load(std::memory_order_relaxed) < count; }
        void work_off() {
            for (int64_t k; (k = following.fetch_add(1, std::memory_order_relaxed)) < count;) work(context, k);
        }
    };

    static constexpr int caller_spins = 2000, worker_spins = 20000;  // tens of microseconds, and a fraction of a millisecond

    static void relax() {
#if defined(__x86_64__) || defined(_M_X64)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    // Never destroyed: its threads end with the process, at whatever time.
    static ThreadPool *&current() {
        static ThreadPool *pool = new ThreadPool;
        return pool;
    }

    // A forked child has none of the threads, and perhaps a lock that nobody will open. It gets a pool of its own.
    static bool renew_in_children() {
#if defined(__unix__) || defined(__APPLE__)
        pthread_atfork(nullptr, nullptr, [] { current() = new ThreadPool; });
#endif
        return true;
    }

    void start(int64_t wanted) {
        for (; size < wanted; ++size) {
            try {
                std::thread(&ThreadPool::serve, this).detach();
            } catch (const std::system_error &) {  // the system has no more threads; the others do the work
                return;
            }
        }
    }

    Call *find_open() const {
        Call *call = calls;
        while (call && !call->open()) call = call->next;
        return call;
    }

    void serve() {
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            if (Call *call = find_open()) {
                --call->places;
                ++call->inside;
                guard.unlock();
                call->work_off();
                guard.lock();
                if (--call->inside == 0) done.notify_all();
                continue;
            }
            const int64_t seen = published.load(std::memory_order_relaxed);
            guard.unlock();
            for (int spins = 0; published.load(std::memory_order_relaxed) == seen && spins < worker_spins; ++spins) relax();
            guard.lock();
            wake.wait(guard, [&] { return published.load(std::memory_order_relaxed) != seen; });
        }
    }

    std::mutex lock;
    std::condition_variable wake, done;
    Call *calls = nullptr;
    int64_t size = 0;  // threads that were started
    std::atomic<int64_t> published{0};  // calls so far; threads without work watch it
};

// Calls work(k) for k in 0 ... count - 1 on at most `threads` threads. The order in which they run is free.
template <class F>
void for_each_block(int64_t count, int64_t threads, F &&work) {
    if (threads <= 1 || count <= 1) {
        for (int64_t k = 0; k < count; ++k) work(k);
        return;
    }
    auto call = [](void *context, int64_t k) { (*static_cast<std::remove_reference_t<F> *>(context))(k); };
    ThreadPool::instance().run(count, std::min(threads, count), call, const_cast<void *>(static_cast<const void *>(&work)));
}

}  // namespace torchdojo
