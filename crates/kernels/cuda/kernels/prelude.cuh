// Definitions that all kernels share. The text is put before each source and compiled at run time by NVRTC
// or hipRTC, without headers.

#if defined(__HIP__) || defined(__HIPCC_RTC__)
#define ON_HIP 1
#if defined(__GFX9__)
#define WARP 64
#else
#define WARP 32
#endif
#else
#define ON_HIP 0
#define WARP 32
#endif

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct bf16 {
    u16 bits;
};

// The element type of a definition: 0 is f32, 1 is bf16.
template <int IS_BF16> struct ElementType { typedef f32 type; };
template <> struct ElementType<1> { typedef bf16 type; };

#define LOG2E 1.4426950408889634f
#define NEG_INFINITY __int_as_float(0xff800000)

// ---- bf16 ----

DEVICE float bf16_to_float(u32 bits) { return __uint_as_float(bits << 16); }

// Rounds to nearest even; NaN stays NaN.
DEVICE u32 float_to_bf16(float x) {
#if ON_HIP
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#else
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#endif
}

// Two bf16 in one register, the first in the low half.
DEVICE u32 bf16_pair(float low, float high) {
#if ON_HIP
    return float_to_bf16(low) | float_to_bf16(high) << 16;
#else
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#endif
}

DEVICE float bf16_low(u32 bits) { return __uint_as_float(bits << 16); }
DEVICE float bf16_high(u32 bits) { return __uint_as_float(bits & 0xffff0000); }

// ---- Single elements ----

DEVICE float to_float(f32 x) { return x; }
DEVICE float to_float(bf16 x) { return bf16_to_float(x.bits); }
DEVICE void from_float(float x, f32* to) { *to = x; }
DEVICE void from_float(float x, bf16* to) { to->bits = (u16)float_to_bf16(x); }

// The value after it was stored as T.
template <class T> DEVICE float rounded(float x) {
    T stored;
    from_float(x, &stored);
    return to_float(stored);
}

// ---- Vectors ----

// N elements as they are in memory: fewer registers than floats for bf16. 8 elements and 4 elements of f32
// must be 16-byte aligned, 4 elements of bf16 8-byte aligned.
template <class T, int N> struct Packed;
template <class T> struct Packed<T, 1> { T only; };
template <> struct Packed<f32, 4> { float4 all; };
template <> struct Packed<bf16, 4> { uint2 all; };
template <> struct Packed<f32, 8> { float4 first, second; };
template <> struct Packed<bf16, 8> { uint4 all; };

template <int N, class T> DEVICE Packed<T, N> load_packed(const T* from) {
    return *(const Packed<T, N>*)from;
}

template <class T> DEVICE void unpack(const Packed<T, 1>& from, float (&to)[1]) {
    to[0] = to_float(from.only);
}
DEVICE void unpack(const Packed<f32, 4>& from, float (&to)[4]) {
    to[0] = from.all.x, to[1] = from.all.y, to[2] = from.all.z, to[3] = from.all.w;
}
DEVICE void unpack(const Packed<bf16, 4>& from, float (&to)[4]) {
    to[0] = bf16_low(from.all.x), to[1] = bf16_high(from.all.x);
    to[2] = bf16_low(from.all.y), to[3] = bf16_high(from.all.y);
}
DEVICE void unpack(const Packed<f32, 8>& from, float (&to)[8]) {
    to[0] = from.first.x, to[1] = from.first.y, to[2] = from.first.z, to[3] = from.first.w;
    to[4] = from.second.x, to[5] = from.second.y, to[6] = from.second.z, to[7] = from.second.w;
}
DEVICE void unpack(const Packed<bf16, 8>& from, float (&to)[8]) {
    to[0] = bf16_low(from.all.x), to[1] = bf16_high(from.all.x);
    to[2] = bf16_low(from.all.y), to[3] = bf16_high(from.all.y);
    to[4] = bf16_low(from.all.z), to[5] = bf16_high(from.all.z);
    to[6] = bf16_low(from.all.w), to[7] = bf16_high(from.all.w);
}

template <int N, class T> DEVICE void load(const T* from, float (&to)[N]) {
    unpack(load_packed<N>(from), to);
}

// One access to global memory. The compiler splits assignments of vector types where registers are scarce.
DEVICE void store_vector(void* to, float4 x) {
#if ON_HIP
    *(float4*)to = x;
#else
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
#endif
}
DEVICE void store_vector(void* to, uint4 x) {
#if ON_HIP
    *(uint4*)to = x;
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
#endif
}
DEVICE void store_vector(void* to, uint2 x) {
#if ON_HIP
    *(uint2*)to = x;
#else
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
#endif
}

// Stores to global memory, aligned as Packed.
template <class T> DEVICE void store(T* to, const float (&from)[1]) { from_float(from[0], to); }
DEVICE void store(f32* to, const float (&from)[4]) {
    store_vector(to, make_float4(from[0], from[1], from[2], from[3]));
}
DEVICE void store(bf16* to, const float (&from)[4]) {
    store_vector(to, make_uint2(bf16_pair(from[0], from[1]), bf16_pair(from[2], from[3])));
}
DEVICE void store(f32* to, const float (&from)[8]) {
    store_vector(to, make_float4(from[0], from[1], from[2], from[3]));
    store_vector(to + 4, make_float4(from[4], from[5], from[6], from[7]));
}
DEVICE void store(bf16* to, const float (&from)[8]) {
    store_vector(to, make_uint4(bf16_pair(from[0], from[1]), bf16_pair(from[2], from[3]),
                                bf16_pair(from[4], from[5]), bf16_pair(from[6], from[7])));
}

// ---- Elementwise loops ----

DEVICE u64 global_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Quotient of an index. Divisions of 64 bits are slow.
DEVICE u64 divide(u64 index, u32 by) { return index >> 32 ? index / by : (u32)index / by; }

// Runs the statements for this thread's elements, `N` from `at` on: 8 of the first `vectorised` elements, or
// one of the rest.
#define FOR_ELEMENTS(len, vectorised, ...)                                                             \
    u64 vectors = (vectorised) / 8, thread = global_thread();                                          \
    if (thread < vectors) {                                                                            \
        constexpr int N = 8;                                                                           \
        u64 at = thread * N;                                                                           \
        __VA_ARGS__                                                                                    \
    } else if (thread - vectors < (len) - (vectorised)) {                                              \
        constexpr int N = 1;                                                                           \
        u64 at = (vectorised) + (thread - vectors);                                                    \
        __VA_ARGS__                                                                                    \
    }

// ---- Reductions ----

template <class T> DEVICE T shuffle_xor(T x, int lanes) {
#if ON_HIP
    return __shfl_xor(x, lanes, WARP);
#else
    return __shfl_xor_sync(0xffffffff, x, lanes);
#endif
}

template <class T> DEVICE T warp_sum(T x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
    return x;
}

// Sum over the block, for all threads. `shared` has one element per warp. All threads of the block call it.
template <class T> DEVICE T block_sum(T x, T* shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) x += shared[warp];
    return x;
}

// Maximum over the block, for all threads, as block_sum.
DEVICE float block_max(float x, float* shared) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = shared[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; warp++) x = fmaxf(x, shared[warp]);
    return x;
}

// Column sums of rows of `columns` elements. Each thread has N consecutive columns of every gridDim.y-th row:
// `rows.load(element)` starts to load them, `rows.values(element, loaded, values)` computes the values to
// add. Writes one row of sums per blockIdx.y.
template <int N, class Rows> DEVICE void sum_columns(u64 count, u64 columns, float* partials, Rows rows) {
    u64 column = global_thread() * N, step = (u64)gridDim.y * columns;
    if (column >= columns) return;
    float sums[N] = {}, values[N];
    u64 at = blockIdx.y * columns + column, end = count * columns;
    // Two rows at a time, so that more loads are in flight.
    for (; at + step < end; at += 2 * step) {
        auto first = rows.load(at), second = rows.load(at + step);
        rows.values(at, first, values);
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] += values[i];
        rows.values(at + step, second, values);
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] += values[i];
    }
    if (at < end) {
        rows.values(at, rows.load(at), values);
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] += values[i];
    }
    store(partials + blockIdx.y * columns + column, sums);
}

// ---- Functions ----

// 2^x, with 2 units in the last place.
DEVICE float exp2_fast(float x) {
#if ON_HIP
    return __builtin_amdgcn_exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

DEVICE float reciprocal_fast(float x) {
#if ON_HIP
    return __builtin_amdgcn_rcpf(x);
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// e^x with the accuracy that results of type T need.
template <class T> DEVICE float exp_for(float x);
template <> DEVICE float exp_for<f32>(float x) { return expf(x); }
template <> DEVICE float exp_for<bf16>(float x) { return exp2_fast(x * LOG2E); }

template <class T> DEVICE float sigmoid_for(float x);
template <> DEVICE float sigmoid_for<f32>(float x) {
    return 1.0f / (1.0f + expf(-x));
}
template <> DEVICE float sigmoid_for<bf16>(float x) {
    return reciprocal_fast(1.0f + exp2_fast(-LOG2E * x));
}

// ---- Random numbers ----

// 32 random bits, the same as on other devices.
DEVICE u32 random_u32(u64 key, u64 index) {
    u32 z = (u32)index ^ (u32)key;
    z = (z ^ (z >> 16)) * 0x7feb352d;
    z += (u32)(key >> 32) ^ (u32)(index >> 32) * 0x9e3779b9;
    z = (z ^ (z >> 15)) * 0x846ca68b;
    return z ^ (z >> 16);
}

// Key and offset of a dropout mask. If the mask differs between launches of a graph, `state` has its key, and
// the offset to which that of the operation is added; otherwise it is null.
DEVICE u64 state_key(const u64* state, u64 key) { return state ? state[0] : key; }
DEVICE u64 state_offset(const u64* state, u64 offset) { return state ? state[1] + offset : offset; }

// The dropout factor of an element. `threshold` is p * 2^24, `scale` is 1 / (1 - p).
DEVICE float dropout_factor(u64 key, u64 index, float threshold, float scale) {
    return (float)(random_u32(key, index) >> 8) < threshold ? 0.0f : scale;
}
