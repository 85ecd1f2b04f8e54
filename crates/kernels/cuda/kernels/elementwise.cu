// Elementwise operations, copies and the sum of squares.
//
// Every elementwise kernel takes `len` elements, of which the first `vectorised` are processed 8 at a time.

#define THREADS 256

template <class X, class Y, class Z> DEVICE void add(const X* x, const Y* y, Z* z, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float a[N], b[N];
        load(x + at, a);
        load(y + at, b);
        for (int i = 0; i < N; i++) a[i] += b[i];
        store(z + at, a);
    })
}

#define ADD(X, Y, Z)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        add_##X##_##Y##_##Z(const X* x, const Y* y, Z* z, u64 len, u64 vectorised) {                   \
        add(x, y, z, len, vectorised);                                                                 \
    }

ADD(f32, f32, f32)
ADD(f32, f32, bf16)
ADD(f32, bf16, f32)
ADD(f32, bf16, bf16)
ADD(bf16, f32, f32)
ADD(bf16, f32, bf16)
ADD(bf16, bf16, f32)
ADD(bf16, bf16, bf16)

template <class X> DEVICE void scale(X* x, float by, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        load(x + at, values);
        for (int i = 0; i < N; i++) values[i] *= by;
        store(x + at, values);
    })
}

#define SCALE(X)                                                                                       \
    KERNEL __launch_bounds__(THREADS) scale_##X(X* x, float by, u64 len, u64 vectorised) {             \
        scale(x, by, len, vectorised);                                                                 \
    }

SCALE(f32)
SCALE(bf16)

// `offset` is the index of the first element in the mask.
template <class X>
DEVICE void dropout(X* x, u64 key, u64 offset, float threshold, float scale, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        load(x + at, values);
        for (int i = 0; i < N; i++) values[i] *= dropout_factor(key, offset + at + i, threshold, scale);
        store(x + at, values);
    })
}

#define DROPOUT(X)                                                                                     \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        dropout_##X(X* x, const u64* state, u64 key, u64 offset, float threshold, float scale,         \
                    u64 len, u64 vectorised) {                                                         \
        dropout(x, state_key(state, key), state_offset(state, offset), threshold, scale, len,          \
                vectorised);                                                                           \
    }

DROPOUT(f32)
DROPOUT(bf16)

template <class X, class Y> DEVICE void convert(const X* x, Y* y, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        load(x + at, values);
        store(y + at, values);
    })
}

// Copies `columns` columns of all rows. Vectors must not cross rows: `vectorised` is all elements or none.
template <class X, class Y>
DEVICE void copy_columns(const X* x, u64 x_row, u64 x_first, Y* y, u64 y_row, u64 y_first, u32 columns,
                         u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        u64 row = divide(at, columns);
        u64 column = at - row * columns;
        load(x + row * x_row + x_first + column, values);
        store(y + row * y_row + y_first + column, values);
    })
}

#define COPY(X, Y)                                                                                     \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        convert_##X##_##Y(const X* x, Y* y, u64 len, u64 vectorised) {                                 \
        convert(x, y, len, vectorised);                                                                \
    }                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        copy_columns_##X##_##Y(const X* x, u64 x_row, u64 x_first, Y* y, u64 y_row, u64 y_first,       \
                               u32 columns, u64 len, u64 vectorised) {                                 \
        copy_columns(x, x_row, x_first, y, y_row, y_first, columns, len, vectorised);                  \
    }

COPY(f32, f32)
COPY(f32, bf16)
COPY(bf16, f32)
COPY(bf16, bf16)

template <class X> DEVICE void fill(X* x, float value, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        for (int i = 0; i < N; i++) values[i] = value;
        store(x + at, values);
    })
}

#define FILL(X)                                                                                        \
    KERNEL __launch_bounds__(THREADS) fill_##X(X* x, float value, u64 len, u64 vectorised) {           \
        fill(x, value, len, vectorised);                                                               \
    }

FILL(f32)
FILL(bf16)

// Scalars and token ids, of which there are few.
KERNEL __launch_bounds__(THREADS) fill_f64(f64* x, float value, u64 len, u64) {
    if (global_thread() < len) x[global_thread()] = value;
}
KERNEL __launch_bounds__(THREADS) fill_i32(i32* x, float value, u64 len, u64) {
    if (global_thread() < len) x[global_thread()] = (i32)value;
}

// One sum per block. 8 squares are added in f32, these sums in f64.
template <class X>
DEVICE void sum_of_squares(const X* x, double* partials, u64 len, u64 vectorised) {
    __shared__ double shared[THREADS / WARP];
    u64 threads = (u64)gridDim.x * THREADS;
    double sum = 0;
    for (u64 at = global_thread() * 8; at < vectorised; at += threads * 8) {
        float values[8], squares = 0;
        load(x + at, values);
        for (int i = 0; i < 8; i++) squares += values[i] * values[i];
        sum += squares;
    }
    for (u64 at = vectorised + global_thread(); at < len; at += threads) {
        float value = to_float(x[at]);
        sum += value * value;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

#define SUM_OF_SQUARES(X)                                                                              \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        sum_of_squares_##X(const X* x, double* partials, u64 len, u64 vectorised) {                    \
        sum_of_squares(x, partials, len, vectorised);                                                  \
    }

SUM_OF_SQUARES(f32)
SUM_OF_SQUARES(bf16)

// Adds `count` partial sums to a scalar, in a fixed order. One block.
KERNEL __launch_bounds__(THREADS) add_scalars(const double* partials, u64 count, double* sum) {
    __shared__ double shared[THREADS / WARP];
    double partial = 0;
    for (u64 i = threadIdx.x; i < count; i += THREADS) partial += partials[i];
    partial = block_sum(partial, shared);
    if (threadIdx.x == 0) *sum += partial;
}

#define COLUMNS 32
#define LANES 16

// Adds the column sums of `count` rows to `first`, those of the columns from `first_len` on to `second`, and
// writes those of the columns from `second_end` on to `third`. In a fixed order; for few rows.
KERNEL __launch_bounds__(COLUMNS* LANES) add_column_partials(const float* partials, u32 count, u64 columns,
                                                             float* first, u64 first_len, float* second,
                                                             u64 second_end, float* third) {
    __shared__ float shared[LANES][COLUMNS];
    u32 local = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    u64 column = (u64)blockIdx.x * COLUMNS + local;
    float sum = 0;
    if (column < columns) {
        for (u32 row = lane; row < count; row += LANES) sum += partials[row * columns + column];
    }
    shared[lane][local] = sum;
    __syncthreads();
    if (lane > 0 || column >= columns) return;
    for (u32 other = 1; other < LANES; other++) sum += shared[other][local];
    if (column >= second_end) {
        third[column - second_end] = sum;
        return;
    }
    float* to = column < first_len ? first + column : second + (column - first_len);
    *to += sum;
}
