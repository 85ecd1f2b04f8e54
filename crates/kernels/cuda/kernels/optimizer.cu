// AdamW, SGD and the clip coefficient.

#define THREADS 256
// Elements of a block.
#define CHUNK 2048
// Vectors that a thread loads at once.
#define AT_ONCE 2
// Bounds of ranges with weight decay that a launch takes.
#define MAX_BOUNDS 64

// Square root and quotient within two units in the last place: accurate ones take longer than the memory.
DEVICE float fast_sqrt(float x) {
#if ON_HIP
    return __builtin_amdgcn_sqrtf(x);
#else
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

DEVICE float fast_divide(float x, float y) {
#if ON_HIP
    return x * __builtin_amdgcn_rcpf(y);
#else
    float quotient;
    asm("div.approx.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
#endif
}

// A factor that differs between launches of a graph: in device memory, or an argument if `factors` is null.
DEVICE float factor_of(const float* factors, int index, float argument) {
    return factors ? factors[index] : argument;
}

#define BOUNDS_8(n)                                                                                    \
    u64 bound##n##0, u64 bound##n##1, u64 bound##n##2, u64 bound##n##3, u64 bound##n##4,               \
        u64 bound##n##5, u64 bound##n##6, u64 bound##n##7
#define BOUND_NAMES_8(n)                                                                               \
    bound##n##0, bound##n##1, bound##n##2, bound##n##3, bound##n##4, bound##n##5, bound##n##6, bound##n##7

// Starts and ends of ascending ranges with weight decay, in kernel arguments: no memory to keep up to date.
#define BOUNDS                                                                                         \
    BOUNDS_8(0), BOUNDS_8(1), BOUNDS_8(2), BOUNDS_8(3), BOUNDS_8(4), BOUNDS_8(5), BOUNDS_8(6), BOUNDS_8(7)
#define BOUND_NAMES                                                                                    \
    BOUND_NAMES_8(0), BOUND_NAMES_8(1), BOUND_NAMES_8(2), BOUND_NAMES_8(3), BOUND_NAMES_8(4),          \
        BOUND_NAMES_8(5), BOUND_NAMES_8(6), BOUND_NAMES_8(7)

template <class... Bounds> DEVICE void set_bounds(u64* to, Bounds... bounds) {
    static_assert(sizeof...(bounds) == MAX_BOUNDS, "one argument per bound");
    ((*to++ = bounds), ...);
}

// Which elements of a block's chunk have weight decay.
struct Decay {
    bool is_uniform, is_decayed;
    const u64* bounds;

    // An element has weight decay if an odd number of bounds are at or before it.
    __device__ bool of(u64 element) const {
        if (is_uniform) return is_decayed;
        int before = 0;
#pragma unroll 1
        for (int i = 0; i < MAX_BOUNDS; i++) before += bounds[i] <= element;
        return before % 2 == 1;
    }
};

// The decay of the chunk from `first` on. All threads of the block call it. `shared` has the bounds.
DEVICE Decay decay_of(u64 first, const u64* shared) {
    __syncthreads();
    bool is_bound = threadIdx.x < MAX_BOUNDS;
    u64 bound = is_bound ? shared[threadIdx.x] : 0;
    int before = __syncthreads_count(is_bound && bound <= first);
    int inside = __syncthreads_count(is_bound && bound > first && bound < first + CHUNK);
    return {inside == 0, before % 2 == 1, shared};
}

// Updates the elements of the block's chunk, from `begin + blockIdx.x * CHUNK` to `end` at most. `step.at<N,
// COUNT>(element, has_decay)` updates COUNT vectors of N elements, THREADS vectors apart.
template <class Step> DEVICE void for_chunk(u64 begin, u64 end, bool is_vectorised, const u64* bounds, Step step) {
    const u64 first = begin + (u64)blockIdx.x * CHUNK;
    const Decay decay = decay_of(first, bounds);
    if (is_vectorised && decay.is_uniform && first + CHUNK <= end) {
#pragma unroll 1
        for (int i = 0; i < CHUNK / (4 * THREADS); i += AT_ONCE)
            step.template at<4, AT_ONCE>(first + (i * THREADS + threadIdx.x) * 4, decay.is_decayed);
        return;
    }
    const u64 last = first + CHUNK < end ? first + CHUNK : end;
#pragma unroll 1
    for (u64 at = first + threadIdx.x; at < last; at += THREADS) step.template at<1, 1>(at, decay.of(at));
}

template <class W> struct AdamW {
    const float* __restrict__ grad;
    float *__restrict__ moment1, *__restrict__ moment2, *__restrict__ param;
    W* __restrict__ weight;
    float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, step_size, v_correction, decay;

    template <int N, int COUNT> __device__ __forceinline__ void at(u64 first, bool has_decay) const {
        float g[COUNT][N], m[COUNT][N], v[COUNT][N], p[COUNT][N];
        // All loads before the first store, which the compiler must assume to overlap.
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u64 at = first + i * N * THREADS;
            load(grad + at, g[i]);
            load((const float*)moment1 + at, m[i]);
            load((const float*)moment2 + at, v[i]);
            load((const float*)param + at, p[i]);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u64 at = first + i * N * THREADS;
#pragma unroll
            for (int j = 0; j < N; j++) {
                float scaled = g[i][j] * grad_scale;
                m[i][j] = fmaf(m[i][j], beta1, scaled * one_minus_beta1);
                v[i][j] = fmaf(v[i][j], beta2, scaled * scaled * one_minus_beta2);
                float update = fast_divide(m[i][j], fmaf(fast_sqrt(v[i][j]), v_correction, eps));
                p[i][j] = fmaf(update, -step_size, has_decay ? p[i][j] * decay : p[i][j]);
            }
            store(moment1 + at, m[i]);
            store(moment2 + at, v[i]);
            store(param + at, p[i]);
            if (weight) store(weight + at, p[i]);
        }
    }
};

// Elements from `begin` to `end`, aligned for vectors of 4 if `is_vectorised`. `weight` may be null.
#define ADAMW(W)                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        adamw_##W(const float* __restrict__ grad, const double* grad_scale,                            \
                  float* __restrict__ moment1, float* __restrict__ moment2, float* __restrict__ param, \
                  W* __restrict__ weight, float beta1, float one_minus_beta1, float beta2,             \
                  float one_minus_beta2, float eps, const float* factors, float step_size,             \
                  float v_correction, float decay, u64 begin, u64 end, u32 is_vectorised, BOUNDS) {    \
        __shared__ u64 bounds[MAX_BOUNDS];                                                             \
        if (threadIdx.x == 0) set_bounds(bounds, BOUND_NAMES);                                         \
        const AdamW<W> step = {grad, moment1, moment2, param, weight, (float)*grad_scale, beta1,       \
                               one_minus_beta1, beta2, one_minus_beta2, eps,                           \
                               factor_of(factors, 0, step_size), factor_of(factors, 1, v_correction),  \
                               factor_of(factors, 2, decay)};                                          \
        for_chunk(begin, end, is_vectorised, bounds, step);                                            \
    }

ADAMW(f32)
ADAMW(bf16)

template <class W> struct Sgd {
    const float* __restrict__ grad;
    float *__restrict__ moment, *__restrict__ param;
    W* __restrict__ weight;
    float grad_scale, lr, momentum, weight_decay;

    template <int N, int COUNT> __device__ __forceinline__ void at(u64 first, bool has_decay) const {
        float g[COUNT][N], m[COUNT][N], p[COUNT][N];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u64 at = first + i * N * THREADS;
            load(grad + at, g[i]);
            load((const float*)moment + at, m[i]);
            load((const float*)param + at, p[i]);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u64 at = first + i * N * THREADS;
#pragma unroll
            for (int j = 0; j < N; j++) {
                float decayed = fmaf(g[i][j], grad_scale, has_decay ? p[i][j] * weight_decay : 0.0f);
                m[i][j] = fmaf(m[i][j], momentum, decayed);
                p[i][j] = fmaf(m[i][j], -lr, p[i][j]);
            }
            store(moment + at, m[i]);
            store(param + at, p[i]);
            if (weight) store(weight + at, p[i]);
        }
    }
};

#define SGD(W)                                                                                         \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        sgd_##W(const float* __restrict__ grad, const double* grad_scale, float* __restrict__ moment,  \
                float* __restrict__ param, W* __restrict__ weight, float momentum,                     \
                float weight_decay, const float* factors, float lr, u64 begin, u64 end,                \
                u32 is_vectorised, BOUNDS) {                                                           \
        __shared__ u64 bounds[MAX_BOUNDS];                                                             \
        if (threadIdx.x == 0) set_bounds(bounds, BOUND_NAMES);                                         \
        const Sgd<W> step = {grad, moment, param, weight, (float)*grad_scale,                          \
                             factor_of(factors, 0, lr), momentum, weight_decay};                       \
        for_chunk(begin, end, is_vectorised, bounds, step);                                            \
    }

SGD(f32)
SGD(bf16)

// The sum of squares counts every gradient `copies` times.
KERNEL clip_coefficient(const double* sum_of_squares, double copies, double max_norm, double* to) {
    double norm = sqrt(*sum_of_squares / copies), clipped = max_norm / (norm + 1e-6);
    *to = max_norm > 0 && clipped < 1 ? clipped : 1.0;
}
