// LayerNorm and RMSNorm of rows that threads hold in registers.
//
// Definitions besides those of rows.cuh: IS_RMS; whether tensors are bf16: X_BF16 the input, DELTA_BF16 what is
// added to it, WEIGHT_BF16 weight and bias, Y_BF16 the output and its gradient, DX_BF16 the input's gradient,
// COPY_BF16 the copy of that; HAS_FP8 whether operands of GEMMs are also written in fp8. The backward pass is
// compiled with HAS_BIAS, HAS_SUMS, and MIN_BLOCKS that a multiprocessor holds.

typedef ElementType<X_BF16>::type X;
typedef ElementType<DELTA_BF16>::type Delta;
typedef ElementType<WEIGHT_BF16>::type Weight;
typedef ElementType<Y_BF16>::type Y;
typedef ElementType<DX_BF16>::type Dx;
typedef ElementType<COPY_BF16>::type Copy;

#ifndef HAS_BIAS

// The norm of a row in registers. `row` may be past the end: such threads only take part in the sums.
DEVICE void norm_of_registers(const float (&x)[PER_THREAD][8], const Weight* weight, const Weight* bias,
                              Y* y, Fp8Rows fp8, float2* mean_rstd, float eps, u64 row, bool is_row) {
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
    if (is_row && row_thread() == 0) mean_rstd[row] = make_float2(mean, rstd);
    float result[PER_THREAD][8] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!is_row || !has_vector(i)) continue;
        float w[8], b[8];
        unpack(weights[i], w);
        unpack(biases[i], b);
#pragma unroll
        for (int j = 0; j < 8; j++) result[i][j] = (x[i][j] - mean) * rstd * w[j] + b[j];
        store(y + row * COLUMNS + vector_column(i), result[i]);
    }
    if (HAS_FP8) {
        __shared__ float maxima[BLOCK_ROWS][ROW_WARPS];
        store_fp8_row<Y>(result, fp8, row, is_row, maxima);
    }
}

DEVICE u64 first_row() { return (u64)blockIdx.x * BLOCK_ROWS + threadIdx.x / ROW_THREADS; }

KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS)
    norm_forward(const X* x, const Weight* weight, const Weight* bias, Y* y, u8* fp8_values, float* fp8_scales,
                 float2* mean_rstd, float eps, u64 rows) {
    u64 row = first_row();
    float values[PER_THREAD][8] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (row < rows && has_vector(i)) load(x + row * COLUMNS + vector_column(i), values[i]);
    }
    norm_of_registers(values, weight, bias, y, {fp8_values, fp8_scales}, mean_rstd, eps, row, row < rows);
}

// sum = x + delta, and its norm.
KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS)
    add_norm(const X* x, const Delta* delta, const Weight* weight, const Weight* bias, X* sum, Y* y,
             u8* fp8_values, float* fp8_scales, float2* mean_rstd, float eps, u64 rows) {
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
    norm_of_registers(values, weight, bias, y, {fp8_values, fp8_scales}, mean_rstd, eps, row, row < rows);
}

#else

// What a thread loads of a row.
struct RowVectors {
    Packed<Y, 8> dy[PER_THREAD];
    Packed<X, 8> x[PER_THREAD];
    Packed<Dx, 8> dx[PER_THREAD];
};

// Partial sums of a thread: of the weight's gradient, of the bias's, and of the input's.
constexpr int PARTS = 1 + HAS_BIAS + HAS_SUMS;
constexpr int BIAS_PART = HAS_BIAS;
constexpr int SUMS_PART = HAS_BIAS + HAS_SUMS;

// Accumulates into dx, and writes it to dx_copy unless that is null, and with HAS_FP8 in fp8. Each block sums the
// parameter gradients of its rows and writes them to `partials`: those of the weight, those of the bias, and the
// column sums of dx.
KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS, MIN_RESIDENT(MIN_BLOCKS))
    norm_backward(const Y* dy, const X* x, const Weight* weight, const float2* mean_rstd, Dx* dx,
                  Copy* dx_copy, u8* fp8_values, float* fp8_scales, float* partials, u64 rows) {
    __shared__ float2 shared[2][BLOCK_ROWS][ROW_WARPS];
    __shared__ float maxima[2][BLOCK_ROWS][ROW_WARPS];
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
            loaded.dx[i] = load_packed<8>((const Dx*)dx + at);
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
        float shift = IS_RMS ? 0.0f : sums.x / COLUMNS, projection = sums.y / COLUMNS;
        float total[PER_THREAD][8] = {};
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (!is_row || !has_vector(i)) continue;
            u64 at = row * COLUMNS + vector_column(i);
            unpack(loaded.dx[i], total[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                total[i][j] += (upstream[i][j] - shift - normalised[i][j] * projection) * stats.y;
                if (HAS_SUMS) parts[SUMS_PART][i][j] += total[i][j];
            }
            store(dx + at, total[i]);
            if (dx_copy) store(dx_copy + at, total[i]);
        }
        if (HAS_FP8) store_fp8_row<Copy>(total, {fp8_values, fp8_scales}, row, is_row, maxima[turn]);
        turn ^= 1;
    }
    write_partials(parts, partials);
}

#endif
