// LayerNorm and RMSNorm of rows of any length and alignment: one block per row, which it reads several times.
//
// Definitions as in norm.cu, without those of the layout.

typedef ElementType<X_BF16>::type X;
typedef ElementType<DELTA_BF16>::type Delta;
typedef ElementType<WEIGHT_BF16>::type Weight;
typedef ElementType<Y_BF16>::type Y;
typedef ElementType<DX_BF16>::type Dx;
typedef ElementType<COPY_BF16>::type Copy;

#define THREADS 256

// The norm of the block's row.
DEVICE void norm_row(const X* x, const Weight* weight, const Weight* bias, Y* y, float2* mean_rstd, float eps,
                     u64 columns) {
    __shared__ float shared[THREADS / WARP];
    float mean = 0, squares = 0;
    if (!IS_RMS) {
        float sum = 0;
        for (u64 i = threadIdx.x; i < columns; i += THREADS) sum += to_float(x[i]);
        mean = block_sum(sum, shared) / columns;
    }
    for (u64 i = threadIdx.x; i < columns; i += THREADS) {
        float deviation = to_float(x[i]) - mean;
        squares += deviation * deviation;
    }
    float rstd = 1.0f / sqrtf(block_sum(squares, shared) / columns + eps);
    if (threadIdx.x == 0) *mean_rstd = make_float2(mean, rstd);
    for (u64 i = threadIdx.x; i < columns; i += THREADS) {
        float normalised = (to_float(x[i]) - mean) * rstd;
        from_float(normalised * to_float(weight[i]) + (bias ? to_float(bias[i]) : 0.0f), y + i);
    }
}

KERNEL __launch_bounds__(THREADS) norm_forward(const X* x, const Weight* weight, const Weight* bias, Y* y,
                                               float2* mean_rstd, float eps, u64 columns) {
    u64 row = blockIdx.x, first = row * columns;
    norm_row(x + first, weight, bias, y + first, mean_rstd + row, eps, columns);
}

// sum = x + delta, and its norm.
KERNEL __launch_bounds__(THREADS)
    add_norm(const X* x, const Delta* delta, const Weight* weight, const Weight* bias, X* sum, Y* y,
             float2* mean_rstd, float eps, u64 columns) {
    u64 row = blockIdx.x, first = row * columns;
    // Threads read only the elements of the sum that they write here.
    for (u64 i = threadIdx.x; i < columns; i += THREADS)
        from_float(to_float(x[first + i]) + to_float(delta[first + i]), sum + first + i);
    norm_row(sum + first, weight, bias, y + first, mean_rstd + row, eps, columns);
}

// Accumulates into dx, and writes it to dx_copy unless that is null.
KERNEL __launch_bounds__(THREADS)
    norm_backward(const Y* dy, const X* x, const Weight* weight, const float2* mean_rstd, Dx* dx, Copy* dx_copy,
                  u64 columns) {
    __shared__ float shared[THREADS / WARP];
    u64 row = blockIdx.x, first = row * columns;
    float2 stats = mean_rstd[row];
    float sum = 0, dot = 0;
    for (u64 i = threadIdx.x; i < columns; i += THREADS) {
        float upstream = to_float(dy[first + i]) * to_float(weight[i]);
        sum += upstream;
        dot += upstream * ((to_float(x[first + i]) - stats.x) * stats.y);
    }
    float projection = block_sum(dot, shared) / columns;
    float shift = IS_RMS ? 0.0f : block_sum(sum, shared) / columns;
    for (u64 i = threadIdx.x; i < columns; i += THREADS) {
        float upstream = to_float(dy[first + i]) * to_float(weight[i]);
        float normalised = (to_float(x[first + i]) - stats.x) * stats.y;
        float total = to_float(dx[first + i]) + (upstream - shift - normalised * projection) * stats.y;
        from_float(total, dx + first + i);
        if (dx_copy) from_float(total, dx_copy + first + i);
    }
}

// Parameter gradients: a thread has one column of every gridDim.y-th row. Writes one row of sums per
// blockIdx.y: those of the weight, then those of the bias if there is one.
KERNEL __launch_bounds__(THREADS)
    norm_backward_params(const Y* dy, const X* x, const float2* mean_rstd, float* partials, u64 rows,
                         u64 columns, u32 has_bias) {
    u64 column = global_thread();
    if (column >= columns) return;
    float dweight = 0, dbias = 0;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        float2 stats = mean_rstd[row];
        float upstream = to_float(dy[row * columns + column]);
        dweight += upstream * ((to_float(x[row * columns + column]) - stats.x) * stats.y);
        dbias += upstream;
    }
    partials += blockIdx.y * columns * (has_bias ? 2 : 1) + column;
    partials[0] = dweight;
    if (has_bias) partials[columns] = dbias;
}
