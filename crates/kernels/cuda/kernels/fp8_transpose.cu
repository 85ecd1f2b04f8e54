// The transpose of a matrix in fp8, with a scale per column of the matrix. Numbers of rows and columns are
// multiples of 16.

#define THREADS 256
#define LANES 16
#define GROUPS (THREADS / LANES)
#define TILE 64
// Bytes of a row of a tile in shared memory: a multiple of 16, and not of 128.
#define TILE_BYTES 80

// The largest magnitudes of the columns over every gridDim.y-th group of rows, one row of them per blockIdx.y.
// Each thread has 8 columns.
template <class X> DEVICE void column_maxima(const X* x, u64 rows, u64 columns, float* partials) {
    __shared__ float shared[GROUPS][LANES][8];
    u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    u64 column = ((u64)blockIdx.x * LANES + lane) * 8;
    float maxima[8] = {};
    if (column < columns) {
        for (u64 row = (u64)blockIdx.y * GROUPS + group; row < rows; row += (u64)gridDim.y * GROUPS) {
            float values[8];
            load(x + row * columns + column, values);
#pragma unroll
            for (int i = 0; i < 8; i++) maxima[i] = fmaxf(maxima[i], fabsf(values[i]));
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) shared[group][lane][i] = maxima[i];
    __syncthreads();
    if (group != 0 || column >= columns) return;
    for (u32 other = 1; other < GROUPS; other++)
#pragma unroll
        for (int i = 0; i < 8; i++) maxima[i] = fmaxf(maxima[i], shared[other][lane][i]);
    store(partials + blockIdx.y * columns + column, maxima);
}

// Each block transposes a tile of TILE rows and columns.
template <class X>
DEVICE void quantize_transpose(const X* x, const float* partials, u32 count, u64 rows, u64 columns, u8* values,
                               float* scales) {
    __shared__ __align__(16) u8 tile[TILE][TILE_BYTES];
    __shared__ float maxima[THREADS / TILE][TILE];
    __shared__ float inverses[TILE];
    u64 first_row = (u64)blockIdx.y * TILE, first_column = (u64)blockIdx.x * TILE;
    u32 lane = threadIdx.x % TILE, part = threadIdx.x / TILE;
    float max = 0;
    if (first_column + lane < columns)
        for (u32 at = part; at < count; at += THREADS / TILE)
            max = fmaxf(max, partials[at * columns + first_column + lane]);
    maxima[part][lane] = max;
    __syncthreads();
    if (part == 0) {
        for (u32 other = 1; other < THREADS / TILE; other++) max = fmaxf(max, maxima[other][lane]);
        float scale = fp8_scale(max);
        inverses[lane] = 1.0f / scale;
        if (blockIdx.y == 0 && first_column + lane < columns) scales[first_column + lane] = scale;
    }
    __syncthreads();
    for (u32 vector = threadIdx.x; vector < TILE * TILE / 8; vector += THREADS) {
        u32 row = vector / (TILE / 8), column = vector % (TILE / 8) * 8;
        if (first_row + row >= rows || first_column + column >= columns) continue;
        float from[8];
        load(x + (first_row + row) * columns + first_column + column, from);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            u32 pair = e4m3_pair(from[i] * inverses[column + i], from[i + 1] * inverses[column + i + 1]);
            tile[column + i][row] = (u8)pair;
            tile[column + i + 1][row] = (u8)(pair >> 8);
        }
    }
    __syncthreads();
    // 16 rows of a column per thread.
    u32 column = threadIdx.x / (TILE / 16), row = threadIdx.x % (TILE / 16) * 16;
    if (first_row + row >= rows || first_column + column >= columns) return;
    store_vector(values + (first_column + column) * rows + first_row + row, *(const uint4*)&tile[column][row]);
}

#define TRANSPOSE(X)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        column_maxima_##X(const X* x, u64 rows, u64 columns, float* partials) {                        \
        column_maxima(x, rows, columns, partials);                                                     \
    }                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        quantize_transpose_##X(const X* x, const float* partials, u32 count, u64 rows, u64 columns,    \
                               u8* values, float* scales) {                                            \
        quantize_transpose(x, partials, count, rows, columns, values, scales);                         \
    }

TRANSPOSE(f32)
TRANSPOSE(bf16)
