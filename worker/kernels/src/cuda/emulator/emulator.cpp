// Executes kernels on the host. Each thread of a block is a fiber with its own stack; one thread of the
// operating system runs the fibers of a block. Barriers and exchanges between lanes suspend a fiber until all
// that take part have arrived; the order of the fibers is shuffled. What a GPU leaves undefined is an error.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "types.cuh"

#include "emulator.h"

namespace {

const u64 PAGE = 4096;
// Bytes that cannot be accessed on both sides of an allocation.
const u64 GUARD = 16 * PAGE;
const u64 STACK = 64 * 1024;
const u64 MAX_THREADS = 1024;
const u64 MAX_SHARED = 48 * 1024;
const u64 POISON_ALIGN = 16;

enum class State { Ready, Barrier, Exchange, Together, Done };

struct Fiber {
    Thread thread;
    State state;
    bool started;
    jmp_buf context;
    ucontext_t start;
    // The operation that it waits for.
    int line;
    u32 mask, value, from_lane;
    // The operation of a whole warp, and this lane's part of it.
    void (*work)(void *const *lanes);
    void *own;
};

// Memory between guards that cannot be accessed.
struct Guarded {
    u8 *mapping = nullptr;
    u64 pages = 0;

    // Returns memory that ends at the second guard, up to its alignment. The content is lost if the size
    // changes.
    u8 *resize(u64 bytes) {
        u64 wanted = (bytes + PAGE - 1) / PAGE;
        if (wanted != pages) {
            if (mapping) munmap(mapping, pages * PAGE + 2 * GUARD);
            void *at = mmap(nullptr, wanted * PAGE + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            mapping = static_cast<u8 *>(at);
            pages = wanted;
            mprotect(mapping + GUARD, pages * PAGE, PROT_READ | PROT_WRITE);
        }
        u64 padded = (bytes + POISON_ALIGN - 1) / POISON_ALIGN * POISON_ALIGN;
        return mapping + GUARD + pages * PAGE - padded;
    }
};

struct SharedVariable {
    const char *name;
    u64 bytes;
    u8 *at;
};

// A thread of the operating system, and the block that it runs.
struct Runner {
    std::vector<Fiber> fibers;
    Guarded stacks;
    std::vector<Guarded> shared_memory;
    std::vector<SharedVariable> shared;
    u64 shared_bytes = 0;
    Fiber *current = nullptr;
    jmp_buf scheduler;
    sigjmp_buf fault;
    char reason[400];
    std::vector<u32> order;
    u8 signal_stack[64 * 1024];
};

// Runners are kept, because their stacks are expensive to map.
std::mutex idle_lock;
std::vector<Runner *> idle;

thread_local Runner *runner;

[[noreturn]] void fail(const char *reason) {
    Runner &r = *runner;
    if (r.current) {
        const Thread &t = r.current->thread;
        snprintf(r.reason, sizeof r.reason, "block (%u, %u, %u), thread %u: %s", t.block_x, t.block_y,
                 t.block_z, t.index, reason);
    } else {
        snprintf(r.reason, sizeof r.reason, "%s", reason);
    }
    siglongjmp(r.fault, 1);
}

void fail_at(const char *reason, const void *address) {
    char text[200];
    snprintf(text, sizeof text, "%s, 0x%llx", reason, reinterpret_cast<u64>(address));
    fail(text);
}

void suspend() {
    Runner &r = *runner;
    if (!_setjmp(r.current->context)) _longjmp(r.scheduler, 1);
}

const Thread *current_thread() { return &runner->current->thread; }

void wait_at_barrier(int line) {
    Fiber &f = *runner->current;
    f.state = State::Barrier;
    f.line = line;
    suspend();
}

u32 exchange(int line, u32 mask, u32 value, u32 from_lane) {
    Fiber &f = *runner->current;
    if (!(mask >> (f.thread.index % 32) & 1)) fail("an exchange whose mask lacks the calling lane");
    if (from_lane > 31 || !(mask >> from_lane & 1)) fail("an exchange with a lane that its mask lacks");
    f.state = State::Exchange;
    f.line = line;
    f.mask = mask;
    f.value = value;
    f.from_lane = from_lane;
    suspend();
    return f.value;
}

// Waits for all lanes of the warp. Then `work` is called once, with the parts of all.
void together(int line, void (*work)(void *const *lanes), void *own) {
    Fiber &f = *runner->current;
    f.state = State::Together;
    f.line = line;
    f.work = work;
    f.own = own;
    suspend();
}

void *shared_memory(const char *name, u64 bytes) {
    Runner &r = *runner;
    for (SharedVariable &v : r.shared) {
        if (!strcmp(v.name, name)) {
            if (v.bytes != bytes) fail("two shared arrays of one name and different sizes");
            return v.at;
        }
    }
    r.shared_bytes += bytes;
    if (r.shared_bytes > MAX_SHARED) fail("more than 48 KiB of shared memory");
    if (r.shared_memory.size() <= r.shared.size()) r.shared_memory.emplace_back();
    u8 *at = r.shared_memory[r.shared.size()].resize(bytes);
    memset(at, 0xff, bytes);
    r.shared.push_back({name, bytes, at});
    return at;
}

const Emulator FUNCTIONS = {current_thread, wait_at_barrier, exchange, together, shared_memory, fail_at};

struct sigaction previous[NSIG];

void on_signal(int signal, siginfo_t *info, void *context) {
    if (runner && runner->current) {
        fail_at(signal == SIGFPE ? "division by zero, at" : "access outside of all allocations, at", info->si_addr);
    }
    const struct sigaction &old = previous[signal];
    if (old.sa_flags & SA_SIGINFO) {
        old.sa_sigaction(signal, info, context);
    } else {
        // Returning with the default action restored repeats the fault, which then ends the process.
        sigaction(signal, &old, nullptr);
    }
}

void install_handlers() {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, &previous[signal]);
}

struct Random {
    u64 state;
    u64 next() {
        u64 z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    void permute(std::vector<u32> &items) {
        for (u64 i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next() % i]);
    }
};

struct Launch {
    void (*kernel)(const void *);
    const void *args;
    u32 grid[3];
    u32 threads;
    u64 seed;
    std::atomic<u64> next{0};
    std::atomic<bool> failed{false};
    std::mutex lock;
    std::string reason;
};

thread_local Launch *launch;

void fiber_main() {
    launch->kernel(launch->args);
    runner->current->state = State::Done;
    _longjmp(runner->scheduler, 1);
}

void resume(Fiber &fiber) {
    Runner &r = *runner;
    r.current = &fiber;
    if (!_setjmp(r.scheduler)) {
        if (fiber.started) _longjmp(fiber.context, 1);
        fiber.started = true;
        setcontext(&fiber.start);
    }
    r.current = nullptr;
}

// Lets the block continue behind a barrier that all of its threads have reached.
bool release_barrier() {
    std::vector<Fiber> &fibers = runner->fibers;
    u64 waiting = 0;
    for (Fiber &f : fibers) waiting += f.state == State::Barrier;
    if (waiting == 0) return false;
    for (Fiber &f : fibers) {
        if (f.state == State::Done) fail("a thread returned before a barrier for which others wait");
    }
    if (waiting < fibers.size()) return false;
    for (Fiber &f : fibers) {
        if (f.line != fibers[0].line) fail("the threads of a block wait at different barriers");
    }
    for (Fiber &f : fibers) f.state = State::Ready;
    return true;
}

// Completes the exchanges of a warp whose lanes have all arrived with the same mask.
bool release_exchanges(Fiber *lanes, u32 count) {
    bool released = false;
    for (u32 lane = 0; lane < count; ++lane) {
        if (lanes[lane].state != State::Exchange) continue;
        u32 mask = lanes[lane].mask;
        bool complete = true;
        for (u32 other = 0; other < 32 && complete; ++other) {
            if (!(mask >> other & 1)) continue;
            if (other >= count || lanes[other].state == State::Done) {
                fail("an exchange waits for a lane that does not exist or has returned");
            }
            const Fiber &f = lanes[other];
            complete = f.state == State::Exchange && f.mask == mask && f.line == lanes[lane].line;
        }
        if (!complete) continue;
        u32 values[32];
        for (u32 other = 0; other < count; ++other) values[other] = lanes[other].value;
        for (u32 other = 0; other < count; ++other) {
            if (!(mask >> other & 1)) continue;
            lanes[other].value = values[lanes[other].from_lane];
            lanes[other].state = State::Ready;
        }
        released = true;
    }
    return released;
}

// Completes the operation of a whole warp for which all of its lanes wait.
bool release_together(Fiber *lanes, u32 count) {
    void *parts[32];
    u32 waiting = 0;
    for (u32 lane = 0; lane < count; ++lane) waiting += lanes[lane].state == State::Together;
    if (waiting == 0) return false;
    if (count < 32) fail("an operation of a whole warp in a warp with fewer lanes");
    for (u32 lane = 0; lane < 32; ++lane) {
        const Fiber &f = lanes[lane];
        if (f.state == State::Done) fail("an operation of a whole warp waits for a lane that has returned");
        if (f.state != State::Together || f.line != lanes[0].line) return false;
        parts[lane] = f.own;
    }
    lanes[0].work(parts);
    for (u32 lane = 0; lane < 32; ++lane) lanes[lane].state = State::Ready;
    return true;
}

void run_block(u64 block) {
    Runner &r = *runner;
    const u32 x = (u32)(block % launch->grid[0]), y = (u32)(block / launch->grid[0] % launch->grid[1]);
    const u32 z = (u32)(block / launch->grid[0] / launch->grid[1]);
    r.shared.clear();
    r.shared_bytes = 0;
    const u64 fibers = r.fibers.size();
    r.fibers.resize(launch->threads);
    u8 *stacks = r.stacks.resize(launch->threads * (STACK + PAGE));
    if (fibers != launch->threads) {
        // A page without access separates the stacks.
        for (u32 i = 0; i < launch->threads; ++i) mprotect(stacks + i * (STACK + PAGE), PAGE, PROT_NONE);
    }
    std::vector<u32> &order = r.order;
    order.resize(launch->threads);
    for (u32 i = 0; i < launch->threads; ++i) {
        Fiber &f = r.fibers[i];
        f.thread = {i, x, y, z};
        f.state = State::Ready;
        f.started = false;
        order[i] = i;
        getcontext(&f.start);
        u8 *stack = stacks + i * (STACK + PAGE);
        f.start.uc_stack.ss_sp = stack + PAGE;
        f.start.uc_stack.ss_size = STACK;
        f.start.uc_link = nullptr;
        makecontext(&f.start, fiber_main, 0);
    }
    Random random = {launch->seed * 1000003 + block};
    for (u64 done = 0; done < launch->threads;) {
        random.permute(order);
        done = 0;
        bool progress = false;
        for (u32 i : order) {
            if (r.fibers[i].state == State::Ready) {
                resume(r.fibers[i]);
                progress = true;
            }
        }
        for (Fiber &f : r.fibers) done += f.state == State::Done;
        if (done == launch->threads) break;
        for (u32 first = 0; first < launch->threads; first += 32) {
            u32 count = launch->threads - first < 32 ? launch->threads - first : 32;
            progress |= release_exchanges(&r.fibers[first], count);
            progress |= release_together(&r.fibers[first], count);
        }
        progress |= release_barrier();
        if (!progress) fail("threads wait for each other: a barrier or an exchange in divergent code");
    }
}

void run_blocks(Launch *of) {
    {
        std::lock_guard<std::mutex> guard(idle_lock);
        if (idle.empty()) idle.push_back(new Runner);
        runner = idle.back();
        idle.pop_back();
    }
    Runner &own = *runner;
    launch = of;
    stack_t stack = {};
    stack.ss_sp = own.signal_stack;
    stack.ss_size = sizeof own.signal_stack;
    sigaltstack(&stack, nullptr);
    const u64 blocks = (u64)of->grid[0] * of->grid[1] * of->grid[2];
    if (sigsetjmp(own.fault, 1)) {
        own.current = nullptr;
        std::lock_guard<std::mutex> guard(of->lock);
        if (!of->failed.exchange(true)) of->reason = own.reason;
    } else {
        for (u64 i; (i = of->next++) < blocks && !of->failed;) {
            run_block(of->seed % 2 ? blocks - 1 - i : i);
        }
    }
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, nullptr);
    std::lock_guard<std::mutex> guard(idle_lock);
    idle.push_back(runner);
    runner = nullptr;
}

}  // namespace

extern "C" const Emulator *lode_emulator_functions() {
    static std::once_flag once;
    std::call_once(once, install_handlers);
    return &FUNCTIONS;
}

// Runs a kernel. Returns zero, or writes the reason of the fault and returns one.
extern "C" int lode_emulator_launch(void (*kernel)(const void *), const void *args, const u32 *grid,
                                    u32 threads, u64 seed, u32 workers, char *reason, u64 reason_bytes) {
    Launch of;
    of.kernel = kernel;
    of.args = args;
    memcpy(of.grid, grid, sizeof of.grid);
    of.threads = threads;
    of.seed = seed;
    // The caller's thread has a signal stack of its own, so blocks run on new ones.
    std::vector<std::thread> pool;
    for (u32 i = 0; i < workers; ++i) pool.emplace_back(run_blocks, &of);
    for (std::thread &thread : pool) thread.join();
    if (!of.failed) return 0;
    snprintf(reason, reason_bytes, "%s", of.reason.c_str());
    return 1;
}

// Memory between guards that cannot be accessed. It ends at the second one, up to its alignment.
extern "C" void *lode_emulator_allocate(u64 bytes) {
    const u64 padded = (bytes + POISON_ALIGN - 1) / POISON_ALIGN * POISON_ALIGN;
    const u64 pages = (padded + PAGE - 1) / PAGE;
    void *at = mmap(nullptr, pages * PAGE + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    u8 *first = static_cast<u8 *>(at) + GUARD;
    if (pages && mprotect(first, pages * PAGE, PROT_READ | PROT_WRITE)) return nullptr;
    // Also in front of the allocation, where a page is not guarded, reads give NaN.
    memset(first, 0xff, pages * PAGE);
    return first + pages * PAGE - padded;
}

extern "C" void lode_emulator_free(void *at, u64 bytes) {
    const u64 padded = (bytes + POISON_ALIGN - 1) / POISON_ALIGN * POISON_ALIGN;
    const u64 pages = (padded + PAGE - 1) / PAGE;
    munmap(static_cast<u8 *>(at) + padded - pages * PAGE - GUARD, pages * PAGE + 2 * GUARD);
}
