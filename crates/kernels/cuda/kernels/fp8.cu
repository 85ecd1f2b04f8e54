// Rows in fp8 with a scale per row, fused with what computes them.
//
// Definitions besides those of rows.cuh: X_BF16 whether tensors are bf16, HAS_SUMS whether columns are summed,
// MIN_BLOCKS that a multiprocessor holds. Each block processes every gridDim.x-th group of rows; with HAS_SUMS,
// it writes one row of column sums to `partials`.

typedef ElementType<X_BF16>::type X;

// `rows.load(at, i)` loads the i-th vector of a thread, `rows.values(at, i, values)` computes what is
// written in fp8 and summed.
template <class Rows> DEVICE void quantize(Rows rows, u64 count, Fp8Rows fp8, float* partials) {
    __shared__ float maxima[2][BLOCK_ROWS][ROW_WARPS];
    float sums[1][PER_THREAD][8] = {};
    int turn = 0;
    for (u64 first = (u64)blockIdx.x * BLOCK_ROWS; first < count; first += (u64)gridDim.x * BLOCK_ROWS) {
        u64 row = first + threadIdx.x / ROW_THREADS;
        bool is_row = row < count;
        float values[PER_THREAD][8] = {};
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            if (is_row && has_vector(i)) rows.load(row * COLUMNS + vector_column(i), i);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            if (!is_row || !has_vector(i)) continue;
            rows.values(row * COLUMNS + vector_column(i), i, values[i]);
#pragma unroll
            for (int j = 0; HAS_SUMS && j < 8; j++) sums[0][i][j] += values[i][j];
        }
        store_fp8_row<X>(values, fp8, row, is_row, maxima[turn]);
        turn ^= 1;
    }
    if (HAS_SUMS) write_partials(sums, partials);
}

struct PlainRows {
    const X* x;
    Packed<X, 8> loaded[PER_THREAD];

    __device__ void load(u64 at, int i) { loaded[i] = load_packed<8>(x + at); }
    __device__ void values(u64, int i, float (&to)[8]) { unpack(loaded[i], to); }
};

KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS, MIN_RESIDENT(MIN_BLOCKS))
    quantize_rows(const X* x, u8* fp8_values, float* fp8_scales, float* partials, u64 rows) {
    quantize(PlainRows{x}, rows, {fp8_values, fp8_scales}, partials);
}

// y = gelu(x).
struct GeluRows {
    const X* x;
    X* y;
    Packed<X, 8> loaded[PER_THREAD];

    __device__ void load(u64 at, int i) { loaded[i] = load_packed<8>(x + at); }
    __device__ void values(u64 at, int i, float (&to)[8]) {
        unpack(loaded[i], to);
#pragma unroll
        for (int j = 0; j < 8; j++) to[j] *= gelu_sigmoid<X>(to[j]);
        store(y + at, to);
    }
};

KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS, MIN_RESIDENT(MIN_BLOCKS))
    quantize_gelu(const X* x, X* y, u8* fp8_values, float* fp8_scales, float* partials, u64 rows) {
    quantize(GeluRows{x, y}, rows, {fp8_values, fp8_scales}, partials);
}

// dy *= derivative of GELU at x.
struct GeluBackwardRows {
    const X* x;
    X* dy;
    Packed<X, 8> inputs[PER_THREAD], grads[PER_THREAD];

    __device__ void load(u64 at, int i) {
        inputs[i] = load_packed<8>(x + at);
        grads[i] = load_packed<8>((const X*)dy + at);
    }
    __device__ void values(u64 at, int i, float (&to)[8]) {
        float input[8];
        unpack(inputs[i], input);
        unpack(grads[i], to);
#pragma unroll
        for (int j = 0; j < 8; j++) to[j] *= gelu_derivative<X>(input[j]);
        store(dy + at, to);
    }
};

KERNEL __launch_bounds__(ROW_THREADS* BLOCK_ROWS, MIN_RESIDENT(MIN_BLOCKS))
    quantize_gelu_backward(const X* x, X* dy, u8* fp8_values, float* fp8_scales, float* partials, u64 rows) {
    quantize(GeluBackwardRows{x, dy}, rows, {fp8_values, fp8_scales}, partials);
}
