// Rows that threads hold in registers.
//
// Definitions: COLUMNS of a row, a multiple of 8; ROW_THREADS that share a row, a multiple of WARP; BLOCK_ROWS
// of a block.

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

// Maximum over a row, for all of its threads, as row_sum.
DEVICE float row_max(float x, float (*shared)[ROW_WARPS]) {
    x = warp_max(x);
    if (ROW_WARPS == 1) return x;
    float* of_row = shared[threadIdx.x / ROW_THREADS];
    if (threadIdx.x % WARP == 0) of_row[row_thread() / WARP] = x;
    row_barrier();
    x = of_row[0];
#pragma unroll
    for (int warp = 1; warp < ROW_WARPS; warp++) x = fmaxf(x, of_row[warp]);
    return x;
}

// Adds the partial sums of all rows of the block to those of its first, and writes these.
template <int PARTS> DEVICE void write_partials(float (&parts)[PARTS][PER_THREAD][8], float* partials) {
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

// Blocks that a multiprocessor holds, at least, in the unit of the second launch bound: for HIP, waves per SIMD
// unit, of which there are four.
#if ON_HIP
#define MIN_RESIDENT(blocks) ((blocks) * ROW_WARPS * BLOCK_ROWS > 4 ? (blocks) * ROW_WARPS * BLOCK_ROWS / 4 : 1)
#else
#define MIN_RESIDENT(blocks) (blocks)
#endif
