// Parts of tensor-core attention. HEAD_DIM is 64 or 128.
//
// A tile is some rows of HEAD_DIM bf16 in shared memory. Rows are padded by 16 bytes, so that ldmatrix, which
// reads 16 bytes of each of eight consecutive rows, accesses all banks.

#define ROW_BYTES (HEAD_DIM * 2 + 16)
#define ROW_CHUNKS (HEAD_DIM / 8)
// Steps of mma.sync over the head dimension, and its column tiles.
#define DIM_STEPS (HEAD_DIM / 16)
#define DIM_TILES (HEAD_DIM / 8)

extern __shared__ __align__(16) unsigned char attention_shared[];

// The offset of 16 bytes in a tile.
DEVICE u32 tile_offset(u32 row, u32 chunk) { return row * ROW_BYTES + chunk * 16; }

// Starts the copy of ROWS rows into a tile; rows from `valid_rows` on become zero.
template <int ROWS, int THREADS>
DEVICE void load_tile(u32 tile, const bf16* from, i64 stride, int valid_rows) {
    // Rows that the block copies at once.
    constexpr int STEP = THREADS / ROW_CHUNKS;
    static_assert(ROWS % STEP == 0, "every thread copies the same number of chunks");
    int row = threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    from += row * stride + chunk * 8;
    tile += tile_offset(row, chunk);
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++) {
        cp_async_16(tile + i * STEP * ROW_BYTES, from, row + i * STEP < valid_rows);
        from += STEP * stride;
    }
}

// Offsets of this lane's ldmatrix address in a tile.
struct LaneOffsets {
    // Matrices at rows 0 and 8 of chunk 0, then of chunk 1.
    u32 rows_first;
    // Matrices at chunks 0 and 1 of rows 0 to 7, then of rows 8 to 15.
    u32 chunks_first;
};

DEVICE LaneOffsets lane_offsets(int lane) {
    LaneOffsets offsets;
    offsets.rows_first = tile_offset(lane % 16, lane / 16);
    offsets.chunks_first = tile_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    return offsets;
}

// 16 M rows of a tile as left operands.
template <int M>
DEVICE void load_rows(u32 (&a)[DIM_STEPS][M][4], u32 tile, LaneOffsets lanes) {
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(a[step][m], tile + m * 16 * ROW_BYTES + lanes.rows_first + step * 32);
        }
    }
}

// One step of c += a bᵀ over the head dimension. The right operand is 8 N rows of a tile.
template <int M, int N>
DEVICE void mma_step(float (&c)[M][N][4], const u32 (&a)[M][4], u32 b_tile, LaneOffsets lanes,
                     int step) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 b[4];
        ldmatrix_x4(b, b_tile + n * 8 * ROW_BYTES + lanes.chunks_first + step * 32);
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma_bf16(c[m][n], a[m], b[0], b[1]);
            mma_bf16(c[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

template <int M, int N>
DEVICE void set_zero(float (&c)[M][N][4]) {
#pragma unroll
    for (int i = 0; i < M * N * 4; i++) (&c[0][0][0])[i] = 0;
}

// c = a bᵀ, with the left operand in registers.
template <int M, int N>
DEVICE void multiply_rows(float (&c)[M][N][4], const u32 (&a)[DIM_STEPS][M][4], u32 b_tile,
                          LaneOffsets lanes) {
    set_zero(c);
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) mma_step(c, a[step], b_tile, lanes, step);
}

// c = a bᵀ, with the left operand in a tile.
template <int M, int N>
DEVICE void multiply_rows(float (&c)[M][N][4], u32 a_tile, u32 b_tile, LaneOffsets lanes) {
    set_zero(c);
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(a[m], a_tile + m * 16 * ROW_BYTES + lanes.rows_first + step * 32);
        }
        mma_step(c, a, b_tile, lanes, step);
    }
}

// c += p b. An accumulator, rounded to bf16, has the layout of a left operand: p, 16 M rows of 8 N
// columns, times 8 N rows of a tile.
template <int M, int N>
DEVICE void add_product(float (&c)[M][DIM_TILES][4], const float (&p)[M][N][4], u32 b_tile,
                        LaneOffsets lanes) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            a[m][0] = bf16_pair(p[m][n][0], p[m][n][1]);
            a[m][1] = bf16_pair(p[m][n][2], p[m][n][3]);
            a[m][2] = bf16_pair(p[m][n + 1][0], p[m][n + 1][1]);
            a[m][3] = bf16_pair(p[m][n + 1][2], p[m][n + 1][3]);
        }
#pragma unroll
        for (int d = 0; d < DIM_TILES; d += 2) {
            u32 b[4];
            ldmatrix_x4_transposed(b, b_tile + n * 8 * ROW_BYTES + lanes.rows_first + d * 16);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16(c[m][d], a[m], b[0], b[1]);
                mma_bf16(c[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Writes a row of an accumulator, half 0 or 1 of a row tile. A lane has two elements of each column tile.
DEVICE void store_bf16(bf16* row, const float (&c)[DIM_TILES][4], int half, int lane, float factor) {
    u32* to = (u32*)row + lane % 4;
#pragma unroll
    for (int d = 0; d < DIM_TILES; d++) {
        to[d * 4] = bf16_pair(c[d][2 * half] * factor, c[d][2 * half + 1] * factor);
    }
}

// row = row * keep + c * factor. `keep` 0 ignores the old row.
DEVICE void merge_f32(float* row, const float (&c)[DIM_TILES][4], int half, int lane, float keep,
                      float factor) {
    float2* to = (float2*)row + lane % 4;
#pragma unroll
    for (int d = 0; d < DIM_TILES; d++) {
        float2 old = make_float2(0, 0);
        if (keep != 0) old = to[d * 4];
        old.x = old.x * keep + c[d][2 * half] * factor;
        old.y = old.y * keep + c[d][2 * half + 1] * factor;
        to[d * 4] = old;
    }
}
