// Cross-entropy, also vocabulary-parallel. One block per row of logits, of any length and alignment. The first
// `columns` of the `row_len` elements of a row are logits; the others are padding, whose gradient is 0.

#define MAX_THREADS 1024

extern __shared__ uint4 shared_row[];

// Copies 16 bytes. Only the thread that copies may read them, after finish_copies.
DEVICE void copy_to_shared(uint4* to, const void* from) {
#if ON_HIP
    *to = *(const uint4*)from;
#else
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#endif
}

DEVICE void finish_copies() {
#if !ON_HIP
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A row as the 16-byte aligned vectors that contain it. Vectors at its ends may also have elements of other
// rows.
template <class T> struct Row {
    static constexpr u32 N = 16 / sizeof(T);

    T* aligned;
    // Elements before the row in the first vector, and elements up to its end.
    u32 start, end;

    __device__ Row(T* row, u32 columns) {
        start = (u32)((u64)row % 16 / sizeof(T));
        end = start + columns;
        aligned = row - start;
    }

    __device__ u32 vectors() const { return (end + N - 1) / N; }
    __device__ bool is_full(u32 vector) const { return vector * N >= start && vector * N + N <= end; }
    __device__ bool has(u32 element) const { return element >= start && element < end; }

    // Elements of other rows become -inf, which adds nothing to a softmax.
    __device__ void load_vector(u32 vector, float (&to)[N]) const {
        if (is_full(vector)) {
            load((const T*)aligned + vector * N, to);
        } else {
            for (u32 i = 0; i < N; i++) {
                u32 at = vector * N + i;
                to[i] = has(at) ? to_float(aligned[at]) : NEG_INFINITY;
            }
        }
    }

    // Copies a vector to shared memory. Only the thread that copies may read it, after finish_copies.
    __device__ void copy_vector(u32 vector) const {
        if (is_full(vector)) return copy_to_shared(shared_row + vector, aligned + vector * N);
        float x[N];
        load_vector(vector, x);
        for (u32 i = 0; i < N; i++) from_float(x[i], (T*)(shared_row + vector) + i);
    }

    __device__ void store_vector(u32 vector, const float (&from)[N]) const {
        if (is_full(vector)) {
            store(aligned + vector * N, from);
        } else {
            for (u32 i = 0; i < N; i++)
                if (has(vector * N + i)) from_float(from[i], aligned + vector * N + i);
        }
    }

    // Logits become their gradient: softmax times `grad_scale`, minus `grad_scale` for the target.
    __device__ void to_gradient(u32 vector, float (&x)[N], float max, float sum_exp, float grad_scale,
                                u32 target) const {
        float factor = grad_scale / sum_exp;
#pragma unroll
        for (u32 i = 0; i < N; i++) x[i] = exp_for<T>(x[i] - max) * factor;
        if (target / N == vector) {
#pragma unroll
            for (u32 i = 0; i < N; i++) x[i] -= target % N == i ? grad_scale : 0.0f;
        }
    }

    // The target's element in `aligned`, or one past all if it is not in these columns.
    __device__ u32 target_element(i32 target, u64 first) const {
        u64 column = (u64)(i64)target - first;
        return target >= 0 && column < end - start ? start + (u32)column : 0xffffffff;
    }
};

// Writes the gradient of the padding of the block's row.
template <class T> DEVICE void zero_padding(T* row, u32 columns, u32 row_len) {
    for (u32 i = columns + threadIdx.x; i < row_len; i += blockDim.x) from_float(0.0f, row + i);
}

// Maximum, and sum of exp(x - maximum).
template <class T> struct Softmax {
    float max = NEG_INFINITY, sum_exp = 0;

    // exp(-inf - -inf) is NaN, so an infinite maximum is not subtracted.
    __device__ static float finite(float max) { return max == NEG_INFINITY ? 0.0f : max; }

    template <int N> __device__ void add(const float (&x)[N]) {
        float new_max = max;
#pragma unroll
        for (int i = 0; i < N; i++) new_max = fmaxf(new_max, x[i]);
        float base = finite(new_max);
        sum_exp *= exp_for<T>(max - base);
#pragma unroll
        for (int i = 0; i < N; i++) sum_exp += exp_for<T>(x[i] - base);
        max = new_max;
    }

    // That of all threads of the block.
    __device__ void merge_block(float* shared) {
        float block = block_max(max, shared);
        sum_exp = block_sum(sum_exp * exp_for<T>(max - finite(block)), shared);
        max = block;
    }
};

DEVICE double loss_of(double max, double sum_exp, double target_logit) {
    return max - target_logit + log(sum_exp);
}

// ---- With the row in shared memory: logits are read once ----

template <class T>
DEVICE void cross_entropy(const i32* targets, T* logits, u32 columns, u32 row_len, float grad_scale,
                          double* losses) {
    constexpr u32 N = Row<T>::N;
    __shared__ float shared[MAX_THREADS / WARP];
    T* first = logits + (u64)blockIdx.x * row_len;
    const Row<T> row(first, columns);
    const u32 vectors = row.vectors(), target = row.target_element(targets[blockIdx.x], 0);
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) row.copy_vector(i);
    // Other threads overwrite the logits later.
    double target_logit = 0;
    if (threadIdx.x == 0 && target != 0xffffffff) target_logit = to_float(row.aligned[target]);
    finish_copies();
    float max = NEG_INFINITY, sum_exp = 0, x[N];
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        load((const T*)(shared_row + i), x);
#pragma unroll
        for (u32 j = 0; j < N; j++) max = fmaxf(max, x[j]);
    }
    max = block_max(max, shared);
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        load((const T*)(shared_row + i), x);
#pragma unroll
        for (u32 j = 0; j < N; j++) sum_exp += exp_for<T>(x[j] - max);
    }
    sum_exp = block_sum(sum_exp, shared);
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        load((const T*)(shared_row + i), x);
        row.to_gradient(i, x, max, sum_exp, grad_scale, target);
        row.store_vector(i, x);
    }
    zero_padding(first, columns, row_len);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss_of(max, sum_exp, target_logit);
}

// As cross_entropy; the gradient is also written in fp8. Rows are aligned vectors. Padding is -inf in shared
// memory, so that its gradient is 0 without special cases.
template <class T>
DEVICE void cross_entropy_fp8(const i32* targets, T* logits, u32 columns, u32 row_len, float grad_scale,
                              double* losses, u8* fp8_values, float* fp8_scales) {
    constexpr u32 N = Row<T>::N;
    __shared__ float shared[MAX_THREADS / WARP];
    const Row<T> row(logits + (u64)blockIdx.x * row_len, columns);
    const u32 vectors = row_len / N, target = row.target_element(targets[blockIdx.x], 0);
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) row.copy_vector(i);
    finish_copies();
    // Largest logit of the other tokens, which has the largest probability of them.
    float other = NEG_INFINITY, sum_exp = 0, x[N];
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        load((const T*)(shared_row + i), x);
#pragma unroll
        for (u32 j = 0; j < N; j++) other = fmaxf(other, i * N + j == target ? NEG_INFINITY : x[j]);
    }
    other = block_max(other, shared);
    bool has_target = target != 0xffffffff;
    float target_logit = has_target ? to_float(((const T*)shared_row)[target]) : NEG_INFINITY;
    float max = fmaxf(other, target_logit);
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        load((const T*)(shared_row + i), x);
#pragma unroll
        for (u32 j = 0; j < N; j++) sum_exp += exp_for<T>(x[j] - max);
    }
    sum_exp = block_sum(sum_exp, shared);
    float factor = grad_scale / sum_exp;
    float magnitude = rounded<T>(exp_for<T>(other - max) * factor);
    if (has_target) {
        float of_target = exp_for<T>(target_logit - max) * factor - grad_scale;
        magnitude = fmaxf(magnitude, fabsf(rounded<T>(of_target)));
    }
    float scale = fp8_scale(magnitude), inverse = 1.0f / scale;
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        load((const T*)(shared_row + i), x);
        row.to_gradient(i, x, max, sum_exp, grad_scale, target);
        store(row.aligned + i * N, x);
#pragma unroll
        for (u32 j = 0; j < N; j++) x[j] = rounded<T>(x[j]) * inverse;
        u8* to = fp8_values + (u64)blockIdx.x * row_len + i * N;
#pragma unroll
        for (u32 j = 0; j < N; j += 4) *(u32*)(to + j) = e4m3_quad(x[j], x[j + 1], x[j + 2], x[j + 3]);
    }
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = loss_of(max, sum_exp, has_target ? target_logit : 0.0f);
        fp8_scales[blockIdx.x] = scale;
    }
}

// ---- With the row in global memory ----

// Writes maximum, sum of exponentials and the target's logit of each row.
template <class T>
DEVICE void cross_entropy_partials(const i32* targets, u64 first, const T* logits, u32 columns, u32 row_len,
                                   float* partials) {
    constexpr u32 N = Row<const T>::N;
    __shared__ float shared[MAX_THREADS / WARP];
    const Row<const T> row(logits + (u64)blockIdx.x * row_len, columns);
    const u32 vectors = row.vectors(), target = row.target_element(targets[blockIdx.x], first);
    Softmax<T> softmax;
    // Two vectors at a time, so that more loads are in flight.
    for (u32 i = threadIdx.x; i < vectors; i += 2 * blockDim.x) {
        float x[N], y[N];
        bool has_second = i + blockDim.x < vectors;
        row.load_vector(i, x);
        if (has_second) row.load_vector(i + blockDim.x, y);
        softmax.add(x);
        if (has_second) softmax.add(y);
    }
    softmax.merge_block(shared);
    if (threadIdx.x == 0) {
        float* of_row = partials + 3 * (u64)blockIdx.x;
        of_row[0] = softmax.max;
        of_row[1] = softmax.sum_exp;
        of_row[2] = target == 0xffffffff ? 0.0f : to_float(row.aligned[target]);
    }
}

template <class T>
DEVICE void cross_entropy_backward(const i32* targets, u64 first, const float* merged, T* logits, u32 columns,
                                   u32 row_len, float grad_scale) {
    T* start = logits + (u64)blockIdx.x * row_len;
    const Row<T> row(start, columns);
    const u32 vectors = row.vectors(), target = row.target_element(targets[blockIdx.x], first);
    const float max = merged[3 * (u64)blockIdx.x], sum_exp = merged[3 * (u64)blockIdx.x + 1];
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        float x[Row<T>::N];
        row.load_vector(i, x);
        row.to_gradient(i, x, max, sum_exp, grad_scale, target);
        row.store_vector(i, x);
    }
    zero_padding(start, columns, row_len);
}

// Merges `sets` sets of partials, each of all rows. `merged` and `losses` may be null.
KERNEL __launch_bounds__(256)
    merge_partials(const float* partials, u64 rows, u32 sets, float* merged, double* losses) {
    u64 row = global_thread();
    if (row >= rows) return;
    double max = NEG_INFINITY, sum_exp = 0, target_logit = 0;
    for (u64 set = 0; set < sets; set++) max = fmax(max, (double)partials[3 * (set * rows + row)]);
    for (u64 set = 0; set < sets; set++) {
        const float* partial = partials + 3 * (set * rows + row);
        // A shard whose logits are all -inf adds nothing.
        if (partial[1] != 0.0f) sum_exp += partial[1] * exp(partial[0] - max);
        target_logit += partial[2];
    }
    if (merged) {
        merged[3 * row] = (float)max;
        merged[3 * row + 1] = (float)sum_exp;
        merged[3 * row + 2] = (float)target_logit;
    }
    if (losses) losses[row] = loss_of(max, sum_exp, target_logit);
}

#define CROSS_ENTROPY(T)                                                                               \
    KERNEL __launch_bounds__(MAX_THREADS)                                                              \
        cross_entropy_##T(const i32* targets, T* logits, u32 columns, u32 row_len, float grad_scale,   \
                          double* losses) {                                                            \
        cross_entropy(targets, logits, columns, row_len, grad_scale, losses);                          \
    }                                                                                                  \
    KERNEL __launch_bounds__(MAX_THREADS)                                                              \
        cross_entropy_fp8_##T(const i32* targets, T* logits, u32 columns, u32 row_len,                 \
                              float grad_scale, double* losses, u8* fp8_values, float* fp8_scales) {   \
        cross_entropy_fp8(targets, logits, columns, row_len, grad_scale, losses, fp8_values,           \
                          fp8_scales);                                                                 \
    }                                                                                                  \
    KERNEL __launch_bounds__(MAX_THREADS)                                                              \
        cross_entropy_partials_##T(const i32* targets, u64 first, const T* logits, u32 columns,        \
                                   u32 row_len, float* partials) {                                     \
        cross_entropy_partials(targets, first, logits, columns, row_len, partials);                    \
    }                                                                                                  \
    KERNEL __launch_bounds__(MAX_THREADS)                                                              \
        cross_entropy_backward_##T(const i32* targets, u64 first, const float* merged, T* logits,      \
                                   u32 columns, u32 row_len, float grad_scale) {                       \
        cross_entropy_backward(targets, first, merged, logits, columns, row_len, grad_scale);          \
    }

CROSS_ENTROPY(f32)
CROSS_ENTROPY(bf16)
