// A GPU with waves of 64 lanes, emulated on the host, for kernels that are compiled as C++. It defines what
// hipRTC has built in, as far as the kernels use it.
//
// Every lane is a fiber. Lanes of a wave meet in wave operations (shuffles, MFMA), lanes of a block in
// barriers. Operations that not all lanes of a wave reach, and writes past the shared memory of a launch, are
// errors. Shared memory is NaN at the start of a block.

// Only headers of C: those of C++ take longer to compile than most kernels.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __HIP__ 1
#define __GFX9__ 1
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
// Blocks run one after the other, and all lanes of a block in one thread. Of the launches of several threads,
// one runs at a time: variables of threads would take a function call per access.
#define __shared__ static

// ---- Types ----

struct float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

// ---- Lanes ----

namespace emulation {

constexpr int WAVE = 64;
constexpr size_t STACK_BYTES = 64 << 10;

enum class State { Ready, AtWaveOperation, AtBarrier, Done };

// Operands of a wave operation.
union Operands {
    double number;
    uint64_t bits;
    struct { short a[4], b[4]; } fragments;
};

struct Lane {
    State state;
    // Whether the fiber exists: it waits in `resume`.
    bool has_started;
    jmp_buf resume;
    ucontext_t start;
    char* stack;
    // Lanes are at most one operation apart, so two sets of operands suffice.
    Operands operands[2];
    unsigned operations;
    int barrier_value;
};

// All lanes that a block may have.
constexpr unsigned MAX_LANES = 1024;
static Lane lanes[MAX_LANES];
static unsigned current;
static jmp_buf scheduler;
static void (*call)(void**);
static void** arguments;

__attribute__((noinline)) inline void yield(State state) {
    lanes[current].state = state;
    if (_setjmp(lanes[current].resume) == 0) _longjmp(scheduler, 1);
}

// A fiber runs one block after the other: creating it takes two system calls.
inline void run_lane() {
    for (;;) {
        call(arguments);
        yield(State::Done);
    }
}

// Runs a lane up to its next operation, barrier or end.
__attribute__((noinline)) inline void resume(unsigned index) {
    current = index;
    threadIdx = {index, 0, 0};
    if (_setjmp(scheduler) != 0) return;
    if (lanes[index].has_started) _longjmp(lanes[index].resume, 1);
    lanes[index].has_started = true;
    ucontext_t& context = lanes[index].start;
    getcontext(&context);
    if (lanes[index].stack == nullptr) lanes[index].stack = new char[STACK_BYTES];
    context.uc_stack.ss_sp = lanes[index].stack;
    context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&context, run_lane, 0);
    setcontext(&context);
}

inline unsigned count(unsigned first, unsigned end, State state) {
    unsigned found = 0;
    for (unsigned i = first; i < end; i++) found += lanes[i].state == state;
    return found;
}

// Runs a wave until all of its lanes are at a barrier or done.
inline const char* run_wave(unsigned first, unsigned end) {
    for (;;) {
        for (unsigned i = first; i < end; i++) {
            if (lanes[i].state == State::Ready) resume(i);
        }
        unsigned waiting = count(first, end, State::AtWaveOperation);
        if (waiting == 0) return nullptr;
        if (waiting != WAVE) return "not all lanes of a wave reach a shuffle or MFMA";
        for (unsigned i = first; i < end; i++) lanes[i].state = State::Ready;
    }
}

inline const char* run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) lanes[i].state = State::Ready, lanes[i].operations = 0;
    for (;;) {
        for (unsigned first = 0; first < threads; first += WAVE) {
            unsigned end = first + WAVE < threads ? first + WAVE : threads;
            if (const char* error = run_wave(first, end)) return error;
            unsigned waiting = count(first, end, State::AtBarrier);
            if (waiting != 0 && waiting != end - first) return "not all lanes of a wave reach a barrier";
        }
        if (count(0, threads, State::Done) == threads) return nullptr;
        for (unsigned i = 0; i < threads; i++) {
            if (lanes[i].state == State::AtBarrier) lanes[i].state = State::Ready;
        }
    }
}

// The operands of all lanes of this wave.
struct Exchanged {
    unsigned first, set;
    const Operands& operator[](unsigned lane) const { return lanes[first + lane].operands[set]; }
};

inline Exchanged exchange(const Operands& own) {
    Lane& lane = lanes[current];
    unsigned set = lane.operations++ % 2;
    lane.operands[set] = own;
    yield(State::AtWaveOperation);
    return {current / WAVE * WAVE, set};
}

// Sum of the values of all threads of the block.
inline int barrier_sum(int value) {
    lanes[current].barrier_value = value;
    yield(State::AtBarrier);
    int sum = 0;
    for (unsigned i = 0; i < blockDim.x; i++) sum += lanes[i].barrier_value;
    yield(State::AtBarrier);
    return sum;
}

// Calls a kernel. The arguments of a list initialisation are evaluated from the first to the last.
template <class... P> struct KernelCall {
    KernelCall(void (*kernel)(P...), P... args) { kernel(args...); }
};

template <class... P> void call_kernel(void (*kernel)(P...), void** args) {
    KernelCall<P...>{kernel, *(P*)*args++...};
}

// Dynamic shared memory; empty if the source has none.
struct SharedMemory { unsigned char* start; size_t bytes; };

// Whether the shared memory from an offset on is as at the start of a block: its first byte is, and each
// byte equals the next.
inline bool is_unwritten(const SharedMemory& shared, size_t from) {
    if (from >= shared.bytes) return true;
    const unsigned char* first = shared.start + from;
    return *first == 0xff && memcmp(first, first + 1, shared.bytes - from - 1) == 0;
}

}  // namespace emulation

// ---- Functions ----

inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x > y ? x : y; }

inline void __syncthreads() { emulation::yield(emulation::State::AtBarrier); }
inline int __syncthreads_count(int value) { return emulation::barrier_sum(value != 0); }
inline int __syncthreads_or(int value) { return emulation::barrier_sum(value != 0) != 0; }

template <class T> T __shfl_xor(T x, int mask, int) {
    emulation::Operands own = {};
    memcpy(&own, &x, sizeof(T));
    const emulation::Operands& other =
        emulation::exchange(own)[(threadIdx.x % emulation::WAVE) ^ (unsigned)mask];
    memcpy(&x, &other, sizeof(T));
    return x;
}

template <class T> T atomicAdd(T* to, T x) { T old = *to; *to += x; return old; }
inline unsigned atomicAdd(unsigned* to, int x) { return atomicAdd(to, (unsigned)x); }

inline float sincospif(float x, float* sine, float* cosine) {
    const double pi = 3.141592653589793;
    *sine = (float)sin(pi * x);
    *cosine = (float)cos(pi * x);
    return 0;
}

// The instructions flush denormal results.
inline float flush_denormal(float x) { return fabsf(x) < 1.17549435e-38f ? 0.0f * x : x; }
inline float emulated_exp2(float x) { return flush_denormal(exp2f(x)); }
inline float emulated_rcp(float x) { return flush_denormal(1.0f / x); }
inline float emulated_sqrt(float x) { return sqrtf(x); }

typedef short Bf16x4 __attribute__((vector_size(8)));
typedef float F32x4 __attribute__((vector_size(16)));

// d = a b + c of 16 x 16 tiles, in the layout of the AMD matrix instruction calculator: lane l has
// a[l % 16][4 (l / 16) + i], b[4 (l / 16) + i][l % 16] and c[4 (l / 16) + i][l % 16].
inline F32x4 emulated_mfma(Bf16x4 a, Bf16x4 b, F32x4 c, int, int, int) {
    emulation::Operands own;
    for (int i = 0; i < 4; i++) own.fragments.a[i] = a[i], own.fragments.b[i] = b[i];
    emulation::Exchanged all = emulation::exchange(own);
    auto value = [](short bits) { return __uint_as_float((unsigned)(uint16_t)bits << 16); };
    unsigned lane = threadIdx.x % emulation::WAVE, column = lane % 16;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 16 * 4 + i;
        float sum = c[i];
        for (unsigned k = 0; k < 16; k++) {
            sum += value(all[k / 4 * 16 + row].fragments.a[k % 4]) *
                   value(all[k / 4 * 16 + column].fragments.b[k % 4]);
        }
        c[i] = sum;
    }
    return c;
}

#define __builtin_amdgcn_exp2f emulated_exp2
#define __builtin_amdgcn_rcpf emulated_rcp
#define __builtin_amdgcn_sqrtf emulated_sqrt
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k emulated_mfma

// ---- Entry points ----

#define EXPORTED extern "C" __attribute__((visibility("default")))

static emulation::SharedMemory dynamic_shared_memory();

// Runs a kernel; returns an error, or null.
static const char* run_grid(void (*call)(void**), const unsigned* blocks, unsigned threads,
                            unsigned shared_bytes, void** args) {
    using namespace emulation;
    if (threads > MAX_LANES) return "more threads than a block of an AMD GPU has";
    emulation::call = call;
    arguments = args;
    blockDim = {threads, 1, 1};
    gridDim = {blocks[0], blocks[1], blocks[2]};
    SharedMemory shared = dynamic_shared_memory();
    if (shared_bytes > shared.bytes) return "more shared memory than an AMD GPU has";
    for (unsigned z = 0; z < blocks[2]; z++) {
        for (unsigned y = 0; y < blocks[1]; y++) {
            for (unsigned x = 0; x < blocks[0]; x++) {
                blockIdx = {x, y, z};
                memset(shared.start, 0xff, shared.bytes);
                if (const char* error = run_block(threads)) {
                    // Lanes that wait in the middle of a kernel must not continue there.
                    for (Lane& lane : lanes) lane.has_started = false;
                    return error;
                }
                if (!is_unwritten(shared, shared_bytes)) return "a write past the shared memory of the launch";
            }
        }
    }
    return nullptr;
}

// Runs a kernel when no other thread runs one of this module.
EXPORTED const char* emulate_grid(void (*call)(void**), const unsigned* blocks, unsigned threads,
                                  unsigned shared_bytes, void** args) {
    static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&running);
    const char* error = run_grid(call, blocks, threads, shared_bytes, args);
    pthread_mutex_unlock(&running);
    return error;
}

// A kernel whose arguments are at these addresses.
#define EXPORT_KERNEL(kernel)                                                                          \
    EXPORTED void call_##kernel(void** args) { emulation::call_kernel(kernel, args); }

// The dynamic shared memory that a source declares, at most what a workgroup may use.
#define DYNAMIC_SHARED_BYTES (64 << 10)
#define EXPORT_SHARED(name)                                                                            \
    static emulation::SharedMemory dynamic_shared_memory() {                                           \
        return {(unsigned char*)name, DYNAMIC_SHARED_BYTES};                                           \
    }
