// LayerNorm and RMSNorm of rows that threads hold in registers.
//
// Definitions: COLUMNS of a row, a multiple of 8; ROW_THREADS that share a row, a multiple of WARP; BLOCK_ROWS
// of a block; IS_RMS; whether tensors are bf16: X_BF16 the input and its gradient, DELTA_BF16 what is added to
// it, WEIGHT_BF16 weight and bias, Y_BF16 the output and its gradient, COPY_BF16 the copy of the input's
// gradient. The backward pass is compiled with HAS_BIAS, HAS_SUMS, and MIN_BLOCKS that a multiprocessor holds.

typedef ElementType<X_BF16>::type X;
typedef ElementType<DELTA_BF16>::type Delta;
typedef ElementType<WEIGHT_BF16>::type Weight;
typedef ElementType<Y_BF16>::type Y;
typedef ElementType<COPY_BF16>::type Copy;

constexpr int VECTORS = COLUMNS / 8;
constexpr int PER_THREAD = (VECTORS + ROW_THREADS - 1) / ROW_THREADS;
constexpr bool IS_EXACT = VECTORS % ROW_THREADS == 0;
constexpr int ROW_WARPS = ROW_THREADS / WARP;

static_assert(COLUMNS % 8 == 0 && ROW_THREADS % WARP == 0, "unsupported layout");

// Index of a thread in its row.
DEVICE int row_thread() { return threadIdx.x % ROW_THREADS; }

// Whether a thread has an i-th vector.
DEVICE bool has_vector(int i) { return IS_EXACT || i * ROW_THREADS + row_thread() < VECTORS; }

// First column of a thread's i-th vector.
DEVICE int vector_column(int i) { return (i * ROW_THREADS + row_thread()) * 8; }

// Waits for the threads of this row. All rows of a block wait equally often.
DEVICE void row_barrier() {
#if ON_HIP
    __syncthreads();
#else
    if (BLOCK_ROWS == 1) {
        __syncthreads();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / ROW_THREADS + 1), "n"(ROW_THREADS) : "memory");
    }
#endif
}

// Sums over a row, for all of its threads. `shared` must not be read by an earlier sum that threads may
// still be in: it alternates.
DEVICE float2 row_sum(float2 x, float2 (*shared)[ROW_WARPS]) {
    x.x = warp_sum(x.x);
    x.y = warp_sum(x.y);
    if (ROW_WARPS == 1) return x;
    float2* of_row = shared[threadIdx.x / ROW_THREADS];
    if (threadIdx.x % WARP == 0) of_row[row_thread() / WARP] = x;
    row_barrier();
    x = of_row[0];
#pragma unroll
    for (int warp = 1; warp < ROW_WARPS; warp++) {
        x.x += of_row[warp].x;
        x.y += of_row[warp].y;
    }
    return x;
}

#ifndef HAS_BIAS

// The norm of a row in registers. `row` may be past the end: such threads only take part in the sums.
DEVICE void norm_of_registers(const float (&x)[PER_THREAD][8], const Weight* weight, const Weight* bias,
                              Y* y, float2* mean_rstd, float eps, u64 row, bool is_row) {
    __shared__ float2 shared[2][BLOCK_ROWS][ROW_WARPS];
    // Loaded before the sums, whose latency is longer than that of the loads.
    Packed<Weight, 8> weights[PER_THREAD], biases[PER_THREAD] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!has_vector(i)) continue;
        weights[i] = load_packed<8>(weight + vector_column(i));
        if (bias) biases[i] = load_packed<8>(bias + vector_column(i));
    }
    float mean = 0, sum = 0, squares = 0;
    if (!IS_RMS) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum += x[i][j];
        mean = row_sum(make_float2(sum, 0), shared[0]).x / COLUMNS;
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!has_vector(i)) continue;
#pragma unroll
        for (int j = 0; j < 8; j++) squares += (x[i][j] - mean) * (x[i][j] - mean);
    }
    float variance = row_sum(make_float2(squares, 0), shared[1]).x / COLUMNS;
    float rstd = 1.0f / sqrtf(variance + eps);
    if (!is_row) return;
    if (row_thread() == 0) mean_rstd[row] = make_float2(mean, rstd);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!has_vector(i)) continue;
        float w[8], b[8];
        unpack(weights[i], w);
        unpack(biases[i], b);
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] = (x[i][j] - mean) * rstd * w[j] + b[j];
        store(y + row * COLUMNS + vector_column(i), w);
    }
}

DEVICE u64 first_row() { return (u64)blockIdx.x * BLOCK_ROWS + threadIdx.x / ROW_THREADS; }

KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS)
    norm_forward(const X* x, const Weight* weight, const Weight* bias, Y* y, float2* mean_rstd, float eps, u64 rows) {
    u64 row = first_row();
    float values[PER_THREAD][8] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (row < rows && has_vector(i)) load(x + row * COLUMNS + vector_column(i), values[i]);
    }
    norm_of_registers(values, weight, bias, y, mean_rstd, eps, row, row < rows);
}

// sum = x + delta, and its norm.
KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS)
    add_norm(const X* x, const Delta* delta, const Weight* weight, const Weight* bias, X* sum, Y* y,
             float2* mean_rstd, float eps, u64 rows) {
    u64 row = first_row();
    float values[PER_THREAD][8] = {};
    Packed<Delta, 8> deltas[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!(row < rows && has_vector(i))) continue;
        load(x + row * COLUMNS + vector_column(i), values[i]);
        deltas[i] = load_packed<8>(delta + row * COLUMNS + vector_column(i));
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!(row < rows && has_vector(i))) continue;
        float added[8];
        unpack(deltas[i], added);
#pragma unroll
        for (int j = 0; j < 8; j++) values[i][j] = rounded<X>(values[i][j] + added[j]);
        store(sum + row * COLUMNS + vector_column(i), values[i]);
    }
    norm_of_registers(values, weight, bias, y, mean_rstd, eps, row, row < rows);
}

#else

// What a thread loads of a row.
struct RowVectors {
    Packed<Y, 8> dy[PER_THREAD];
    Packed<X, 8> x[PER_THREAD];
    Packed<X, 8> dx[PER_THREAD];
};

// Partial sums of a thread: of the weight's gradient, of the bias's, and of the input's.
constexpr int PARTS = 1 + HAS_BIAS + HAS_SUMS;
constexpr int BIAS_PART = HAS_BIAS;
constexpr int SUMS_PART = HAS_BIAS + HAS_SUMS;

// Adds the partial sums of all rows of the block to those of its first, and writes these.
DEVICE void write_partials(float (&parts)[PARTS][PER_THREAD][8], float* partials) {
    constexpr int SHARED_COLUMNS = BLOCK_ROWS > 1 ? COLUMNS : 8;
    __shared__ __align__(16) float shared[PARTS][SHARED_COLUMNS];
    int row = threadIdx.x / ROW_THREADS;
    for (int other = 1; other < BLOCK_ROWS; other++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (row != other || !has_vector(i)) continue;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int j = 0; j < 8; j++) shared[part][vector_column(i) + j] = parts[part][i][j];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (row != 0 || !has_vector(i)) continue;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int j = 0; j < 8; j++) parts[part][i][j] += shared[part][vector_column(i) + j];
        }
    }
    if (row != 0) return;
    partials += (u64)blockIdx.x * PARTS * COLUMNS;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!has_vector(i)) continue;
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            store(partials + part * COLUMNS + vector_column(i), parts[part][i]);
    }
}

#if ON_HIP
// The second launch bound of HIP is not in blocks: it is waves per SIMD unit, of which there are four.
constexpr int RESIDENT_WAVES = MIN_BLOCKS * ROW_THREADS * BLOCK_ROWS / WARP;
#define MIN_RESIDENT (RESIDENT_WAVES > 4 ? RESIDENT_WAVES / 4 : 1)
#else
#define MIN_RESIDENT MIN_BLOCKS
#endif

// Accumulates into dx, and writes it to dx_copy unless that is null. Each block sums the parameter gradients
// of its rows and writes them to `partials`: those of the weight, those of the bias, and the column sums of dx.
KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS, MIN_RESIDENT)
    norm_backward(const Y* dy, const X* x, const Weight* weight, const float2* mean_rstd, X* dx,
                  Copy* dx_copy, float* partials, u64 rows) {
    __shared__ float2 shared[2][BLOCK_ROWS][ROW_WARPS];
    float parts[PARTS][PER_THREAD][8] = {};
    Packed<Weight, 8> weights[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        if (has_vector(i)) weights[i] = load_packed<8>(weight + vector_column(i));
    int turn = 0;
    for (u64 first = (u64)blockIdx.x * BLOCK_ROWS; first < rows; first += (u64)gridDim.x * BLOCK_ROWS) {
        u64 row = first + threadIdx.x / ROW_THREADS;
        bool is_row = row < rows;
        RowVectors loaded;
        float2 stats = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (!is_row || !has_vector(i)) continue;
            u64 at = row * COLUMNS + vector_column(i);
            loaded.dy[i] = load_packed<8>(dy + at);
            loaded.x[i] = load_packed<8>(x + at);
            loaded.dx[i] = load_packed<8>((const X*)dx + at);
        }
        if (is_row) stats = mean_rstd[row];
        // Of the gradient times the weight: the sum, and the dot product with the normalised input.
        float2 sums = make_float2(0, 0);
        float normalised[PER_THREAD][8], upstream[PER_THREAD][8];
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (!is_row || !has_vector(i)) continue;
            float w[8];
            unpack(weights[i], w);
            unpack(loaded.x[i], normalised[i]);
            unpack(loaded.dy[i], upstream[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                normalised[i][j] = (normalised[i][j] - stats.x) * stats.y;
                parts[0][i][j] += upstream[i][j] * normalised[i][j];
                if (HAS_BIAS) parts[BIAS_PART][i][j] += upstream[i][j];
                upstream[i][j] *= w[j];
                sums.x += upstream[i][j];
                sums.y += upstream[i][j] * normalised[i][j];
            }
        }
        sums = row_sum(sums, shared[turn]);
        turn ^= 1;
        float shift = IS_RMS ? 0.0f : sums.x / COLUMNS, projection = sums.y / COLUMNS;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (!is_row || !has_vector(i)) continue;
            u64 at = row * COLUMNS + vector_column(i);
            float sum[8];
            unpack(loaded.dx[i], sum);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum[j] += (upstream[i][j] - shift - normalised[i][j] * projection) * stats.y;
                if (HAS_SUMS) parts[SUMS_PART][i][j] += sum[j];
            }
            store(dx + at, sum);
            if (dx_copy) store(dx_copy + at, sum);
        }
    }
    write_partials(parts, partials);
}

#endif
