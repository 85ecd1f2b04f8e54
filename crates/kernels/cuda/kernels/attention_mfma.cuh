// Parts of attention by MFMA, the matrix instructions of gfx90a and gfx942. HEAD_DIM is 64 or 128.
//
// A block has BLOCK_ROWS rows of one operand, its own rows, and loops over the rows of another, LOOP_ROWS at a
// time. Both products have the own rows as columns:
//
//     scores (loop rows x own rows) = loop rows . own rowsᵀ
//     sums (dimensions x own rows) += loop rowsᵀ . scores
//
// A lane then has elements of one own row per column tile, so that statistics of rows stay in its registers,
// and scores, rounded to bf16, have the layout of a right operand: no pass through LDS.
//
// Tiles of loop rows are in LDS, by rows for the first product and transposed for the second. Both are padded
// by 8 bytes, so that reads of 8 bytes from 16 consecutive rows access all banks.

static_assert(WARP == 64, "MFMA kernels need waves of 64 lanes");

#define WAVES 4
// Column tiles of 16 own rows per wave: each left operand from LDS is multiplied this often.
#define COLUMN_TILES 2
#define WAVE_ROWS (COLUMN_TILES * 16)
#define BLOCK_ROWS (WAVES * WAVE_ROWS)
#define BLOCK_THREADS (WAVES * 64)
// Second launch bound of HIP, in waves per SIMD unit: two waves have 256 registers per lane each.
#define RESIDENT_WAVES 2
#define LOOP_TILES (LOOP_ROWS / 16)
#define DIM_TILES (HEAD_DIM / 16)
#define ROW_CHUNKS (HEAD_DIM / 8)
#define ROW_PITCH (HEAD_DIM * 2 + 8)
#define TRANSPOSED_PITCH (LOOP_ROWS * 2 + 8)
#define ROW_TILE_BYTES (LOOP_ROWS * ROW_PITCH)
#define TRANSPOSED_TILE_BYTES (HEAD_DIM * TRANSPOSED_PITCH)
// Chunks of 16 bytes that a thread copies of a tile.
#define THREAD_CHUNKS (LOOP_ROWS * ROW_CHUNKS / BLOCK_THREADS)

static_assert(LOOP_ROWS * ROW_CHUNKS % BLOCK_THREADS == 0, "every thread copies the same number of chunks");

extern __shared__ __align__(16) unsigned char attention_shared[];

// Four bf16 of an operand, and four floats of an accumulator.
typedef short Fragment __attribute__((vector_size(8)));
typedef float Accumulator __attribute__((vector_size(16)));

typedef Fragment OwnRows[COLUMN_TILES][DIM_TILES];
typedef Accumulator Scores[LOOP_TILES][COLUMN_TILES];
typedef Accumulator Sums[DIM_TILES][COLUMN_TILES];

// Element i of a lane's accumulator is in this row of the tile, and in column lane % 16.
DEVICE int tile_row(int lane, int i) { return lane / 16 * 4 + i; }

// c + a b, for 16 x 16 tiles. With r = lane % 16 and s = 4 (lane / 16), a lane has a[r][s..], b[s..][r] and
// c[s..][r], four elements each (AMD matrix instruction calculator, v_mfma_f32_16x16x16bf16_1k on CDNA2 and
// v_mfma_f32_16x16x16_bf16 on CDNA3).
DEVICE Accumulator mfma(Fragment a, Fragment b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}

DEVICE Fragment to_fragment(Accumulator x) {
    union {
        u32 pairs[2];
        Fragment fragment;
    } rounded = {{bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3])}};
    return rounded.fragment;
}

// The own rows of a wave as right operands, from global memory. Rows from `valid_rows` on become zero.
DEVICE void load_own_rows(OwnRows& to, const bf16* from, i64 stride, int valid_rows, int lane) {
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        int row = n * 16 + lane % 16;
        const bf16* at = from + row * stride + tile_row(lane, 0);
#pragma unroll
        for (int step = 0; step < DIM_TILES; step++) {
            to[n][step] = row < valid_rows ? *(const Fragment*)(at + step * 16) : Fragment{};
        }
    }
}

// A thread's part of a tile on its way from global memory to LDS: there are no asynchronous copies.
struct LoopRows {
    uint4 chunks[THREAD_CHUNKS];

    static DEVICE int chunk_of(int i) { return (i * BLOCK_THREADS + threadIdx.x) % ROW_CHUNKS; }
    static DEVICE int row_of(int i) { return (i * BLOCK_THREADS + threadIdx.x) / ROW_CHUNKS; }

    // Rows from `valid_rows` on become zero.
    DEVICE void load(const bf16* from, i64 stride, int valid_rows) {
#pragma unroll
        for (int i = 0; i < THREAD_CHUNKS; i++) {
            const bf16* at = from + row_of(i) * stride + chunk_of(i) * 8;
            chunks[i] = row_of(i) < valid_rows ? *(const uint4*)at : make_uint4(0, 0, 0, 0);
        }
    }

    DEVICE void store(unsigned char* tile) const {
#pragma unroll
        for (int i = 0; i < THREAD_CHUNKS; i++) {
            uint2* to = (uint2*)(tile + row_of(i) * ROW_PITCH + chunk_of(i) * 16);
            to[0] = make_uint2(chunks[i].x, chunks[i].y);
            to[1] = make_uint2(chunks[i].z, chunks[i].w);
        }
    }

    DEVICE void store_transposed(unsigned char* tile) const {
#pragma unroll
        for (int i = 0; i < THREAD_CHUNKS; i++) {
            u16* to = (u16*)(tile + chunk_of(i) * 8 * TRANSPOSED_PITCH) + row_of(i);
            const u32 pairs[4] = {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                to[j * (TRANSPOSED_PITCH / 2)] = (u16)(pairs[j / 2] >> (j % 2 * 16));
            }
        }
    }
};

// This lane's part of tile `row_tile` and step `step` of a left operand in LDS.
DEVICE Fragment left_operand(const unsigned char* tile, int pitch, int row_tile, int step, int lane) {
    return *(const Fragment*)(tile + (row_tile * 16 + lane % 16) * pitch + step * 32 + lane / 16 * 8);
}

// scores = loop rows . own rowsᵀ
DEVICE void multiply_rows(Scores& scores, const unsigned char* tile, const OwnRows& own, int lane) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) scores[m][n] = Accumulator{};
#pragma unroll
        for (int step = 0; step < DIM_TILES; step++) {
            Fragment rows = left_operand(tile, ROW_PITCH, m, step, lane);
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) scores[m][n] = mfma(rows, own[n][step], scores[m][n]);
        }
    }
}

// sums += loop rowsᵀ . scores
DEVICE void add_product(Sums& sums, const unsigned char* transposed, const Scores& scores, int lane) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
        Fragment columns[COLUMN_TILES];
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) columns[n] = to_fragment(scores[m][n]);
#pragma unroll
        for (int d = 0; d < DIM_TILES; d++) {
            Fragment dims = left_operand(transposed, TRANSPOSED_PITCH, d, m, lane);
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) sums[d][n] = mfma(dims, columns[n], sums[d][n]);
        }
    }
}

DEVICE void set_zero(Sums& sums) {
#pragma unroll
    for (int i = 0; i < DIM_TILES * COLUMN_TILES; i++) sums[i / COLUMN_TILES][i % COLUMN_TILES] = Accumulator{};
}

// Writes this lane's elements of an own row, four consecutive ones of each tile.
DEVICE void store_bf16(bf16* row, const Sums& sums, int n, int lane, float factor) {
#pragma unroll
    for (int d = 0; d < DIM_TILES; d++) {
        Accumulator x = sums[d][n] * factor;
        *(uint2*)(row + d * 16 + tile_row(lane, 0)) = make_uint2(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]));
    }
}

// row = row * keep + sums * factor. `keep` 0 ignores the old row.
DEVICE void merge_f32(float* row, const Sums& sums, int n, int lane, float keep, float factor) {
#pragma unroll
    for (int d = 0; d < DIM_TILES; d++) {
        Accumulator* to = (Accumulator*)(row + d * 16 + tile_row(lane, 0));
        Accumulator x = sums[d][n] * factor;
        if (keep != 0) x += *to * keep;
        *to = x;
    }
}
