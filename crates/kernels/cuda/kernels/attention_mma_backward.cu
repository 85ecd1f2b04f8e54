// Backward pass of attention by tensor cores, bf16. Two kernels, so that each gradient is summed by one
// block in a fixed order: one over keys for dk and dv, one over queries for dq.
//
// `lse` and `delta` are those of attention_prepare_backward: per head, the log-sum-exp times log2(e), and
// the row sum of dy * y, padded to `padded_queries`. The probabilities of padded queries are 0.
//
// HEAD_DIM, CAUSAL, DROPOUT, WARPS; ACCUMULATE: gradients are f32 and are added to.

#define BLOCK_THREADS (WARPS * 32)
// Tiles of 16 rows per warp, as registers allow.
#define ROW_TILES (HEAD_DIM == 64 ? 2 : 1)
#define BLOCK_ROWS (WARPS * ROW_TILES * 16)
// Rows that the loops load at once, and rows that they process at once.
#define LOOP_ROWS 64
#define STEP_ROWS (LOOP_ROWS / ROW_TILES)
#define STEP_TILES (STEP_ROWS / 8)
#define LOOP_TILE_BYTES (LOOP_ROWS * ROW_BYTES)
#define LOOP_FLOAT_BYTES (LOOP_ROWS * 4)

typedef float StepTile[ROW_TILES][STEP_TILES][4];
typedef float GradTile[ROW_TILES][DIM_TILES][4];

// Starts the copy of LOOP_ROWS floats.
DEVICE void load_floats(u32 to, const float* from) {
    int at = threadIdx.x;
    if (at < LOOP_ROWS / 4) cp_async_16(to + at * 16, from + at * 4, true);
}

// Writes or accumulates the rows of a lane.
DEVICE void store_rows(void* to, i64 start, i64 stride, int valid_rows, const GradTile& c, int lane,
                       float factor) {
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        int row = i * 8 + lane / 4;
        if (row >= valid_rows) continue;
        i64 at = start + row * stride;
#if ACCUMULATE
        merge_f32((float*)to + at, c[i / 2], i % 2, lane, 1, factor);
#else
        store_bf16((bf16*)to + at, c[i / 2], i % 2, lane, factor);
#endif
    }
}

// Probabilities of transposed scores, keys by queries, from the lane's first key and query on. Dropped
// probabilities are negative.
DEVICE void transposed_probabilities(StepTile& p, const float* lse, int first_key, int first_query,
                                     float scale_log2, bool masked, const HeadDropout& dropout) {
#pragma unroll
    for (int n = 0; n < STEP_TILES; n++) {
        float2 row_lse = *(const float2*)(lse + n * 8);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = first_key + m * 16 + (i >> 1) * 8, query = first_query + n * 8 + (i & 1);
                float value = exp2_fast(fmaf(p[m][n][i], scale_log2, -(i & 1 ? row_lse.y : row_lse.x)));
                if (masked && key > query) value = 0;
                p[m][n][i] = dropout.drops(query, key) ? -value : value;
            }
        }
    }
}

// Gradients of transposed scores, in place of their probabilities.
DEVICE void transposed_score_grads(StepTile& p, const StepTile& dp, const float* delta,
                                   const HeadDropout& dropout) {
#pragma unroll
    for (int n = 0; n < STEP_TILES; n++) {
        float2 row_delta = *(const float2*)(delta + n * 8);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[m][n][i] =
                    score_grad(p[m][n][i], dp[m][n][i], i & 1 ? row_delta.y : row_delta.x, dropout);
            }
        }
    }
}

// dv += p dy, where dropped probabilities are 0.
DEVICE void add_values_grad(GradTile& dv, const StepTile& p, u32 dy_rows, LaneOffsets lanes) {
    if constexpr (DROPOUT) {
        StepTile kept;
#pragma unroll
        for (int i = 0; i < ROW_TILES * STEP_TILES * 4; i++) {
            float value = (&p[0][0][0])[i];
            (&kept[0][0][0])[i] = value < 0 ? 0 : value;
        }
        add_product(dv, kept, dy_rows, lanes);
    } else {
        add_product(dv, p, dy_rows, lanes);
    }
}

// A block has some keys and values of a key/value head, and loops over the queries of the heads that share
// them. Scores are transposed, so that probabilities and their gradients are left operands without a
// pass through shared memory.
KERNEL __launch_bounds__(BLOCK_THREADS)
attention_mma_backward_kv(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                          const float* delta, void* dk, void* dv, int queries, int keys,
                          int padded_queries, int heads, int kv_heads, i64 q_stride, i64 kv_stride,
                          i64 dkv_stride, float scale, DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Blocks that many queries see start first.
    u32 key_blocks = (keys + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_key = blockIdx.x % key_blocks * BLOCK_ROWS;
    int kv_head = blockIdx.x / key_blocks % kv_heads, sequence = blockIdx.x / key_blocks / kv_heads;
    int group = heads / kv_heads;
    i64 key_row = (i64)sequence * keys + first_key, dy_stride = (i64)heads * HEAD_DIM;

    u32 k_tile = shared_address(attention_shared), v_tile = k_tile + BLOCK_ROWS * ROW_BYTES;
    u32 stages = v_tile + BLOCK_ROWS * ROW_BYTES;
    const u32 stage_bytes = 2 * LOOP_TILE_BYTES + 2 * LOOP_FLOAT_BYTES;
    const unsigned char* floats = attention_shared + 2 * BLOCK_ROWS * ROW_BYTES + 2 * LOOP_TILE_BYTES;

    // Under the causal mask, queries before the first key see no key of the block.
    int skipped = CAUSAL ? first_key / LOOP_ROWS : 0;
    int query_blocks = max(0, (queries + LOOP_ROWS - 1) / LOOP_ROWS - skipped);
    auto load_queries = [&](int step) {
        int head = kv_head * group + step / query_blocks;
        int first_query = (skipped + step % query_blocks) * LOOP_ROWS, valid = queries - first_query;
        u32 to = stages + step % 2 * stage_bytes;
        i64 row = (i64)sequence * queries + first_query;
        i64 statistics = ((i64)sequence * heads + head) * padded_queries + first_query;
        const bf16* q_rows = q + row * q_stride + head * HEAD_DIM;
        const bf16* dy_rows = dy + row * dy_stride + head * HEAD_DIM;
        load_tile<LOOP_ROWS, BLOCK_THREADS>(to, q_rows, q_stride, valid);
        load_tile<LOOP_ROWS, BLOCK_THREADS>(to + LOOP_TILE_BYTES, dy_rows, dy_stride, valid);
        load_floats(to + 2 * LOOP_TILE_BYTES, lse + statistics);
        load_floats(to + 2 * LOOP_TILE_BYTES + LOOP_FLOAT_BYTES, delta + statistics);
    };
    i64 kv_start = key_row * kv_stride + kv_head * HEAD_DIM;
    load_tile<BLOCK_ROWS, BLOCK_THREADS>(k_tile, k + kv_start, kv_stride, keys - first_key);
    load_tile<BLOCK_ROWS, BLOCK_THREADS>(v_tile, v + kv_start, kv_stride, keys - first_key);
    int steps = group * query_blocks;
    if (steps > 0) load_queries(0);
    cp_async_commit();

    LaneOffsets lanes = lane_offsets(lane);
    int warp_row = warp * ROW_TILES * 16, warp_key = first_key + warp_row;
    u32 k_rows = k_tile + warp_row * ROW_BYTES, v_rows = v_tile + warp_row * ROW_BYTES;
    int lane_key = warp_key + lane / 4, lane_query = 2 * (lane % 4);
    GradTile dk_sum, dv_sum;
    set_zero(dk_sum);
    set_zero(dv_sum);
    for (int step = 0; step < steps; step++) {
        // The queries have arrived, and no warp reads those of the previous step.
        cp_async_wait_all();
        __syncthreads();
        if (step + 1 < steps) load_queries(step + 1);
        cp_async_commit();
        HeadDropout dropout = HEAD_DROPOUT(sequence, kv_head * group + step / query_blocks);
        u32 stage = step % 2 * stage_bytes;
        const float* lse_rows = (const float*)(floats + stage) + lane_query;
        const float* delta_rows = lse_rows + LOOP_ROWS;
#pragma unroll
        for (int row = 0; row < LOOP_ROWS; row += STEP_ROWS) {
            int query = (skipped + step % query_blocks) * LOOP_ROWS + row;
            if (CAUSAL && query + STEP_ROWS <= warp_key) continue;
            u32 q_rows = stages + stage + row * ROW_BYTES, dy_rows = q_rows + LOOP_TILE_BYTES;
            bool masked = CAUSAL && query < warp_key + ROW_TILES * 16 - 1;
            StepTile p, dp;
            multiply_rows(p, k_rows, q_rows, lanes);
            transposed_probabilities(p, lse_rows + row, lane_key, query + lane_query, scale * LOG2E, masked,
                                     dropout);
            add_values_grad(dv_sum, p, dy_rows, lanes);
            multiply_rows(dp, v_rows, dy_rows, lanes);
            transposed_score_grads(p, dp, delta_rows + row, dropout);
            add_product(dk_sum, p, q_rows, lanes);
        }
    }
    i64 start = (key_row + warp_row) * dkv_stride + kv_head * HEAD_DIM;
    store_rows(dk, start, dkv_stride, keys - warp_key, dk_sum, lane, scale);
    store_rows(dv, start, dkv_stride, keys - warp_key, dv_sum, lane, dropout_scale);
}

// Gradients of scores, queries by keys, in place of the scores. A lane has two rows of each row tile.
DEVICE void score_grads(StepTile& s, const StepTile& dp, const float (&lse)[ROW_TILES][2],
                        const float (&delta)[ROW_TILES][2], int first_query, int first_key, int keys,
                        float scale_log2, bool masked, const HeadDropout& dropout) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int n = 0; n < STEP_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int query = first_query + m * 16 + (i >> 1) * 8, key = first_key + n * 8 + (i & 1);
                float p = exp2_fast(fmaf(s[m][n][i], scale_log2, -lse[m][i >> 1]));
                if (masked && (key >= keys || (CAUSAL && key > query))) p = 0;
                if (dropout.drops(query, key)) p = -p;
                s[m][n][i] = score_grad(p, dp[m][n][i], delta[m][i >> 1], dropout);
            }
        }
    }
}

// A block has some queries of a head and loops over its keys.
KERNEL __launch_bounds__(BLOCK_THREADS)
attention_mma_backward_q(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                         const float* delta, void* dq, int queries, int keys, int padded_queries,
                         int heads, int kv_heads, i64 q_stride, i64 kv_stride, i64 dq_stride, float scale,
                         DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Blocks with many visible keys start first.
    u32 query_blocks = (queries + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_query = (query_blocks - 1 - blockIdx.x % query_blocks) * BLOCK_ROWS;
    int head = blockIdx.x / query_blocks % heads, sequence = blockIdx.x / query_blocks / heads;
    i64 first_row = (i64)sequence * queries + first_query, dy_stride = (i64)heads * HEAD_DIM;
    i64 kv_start = (i64)sequence * keys * kv_stride + head / (heads / kv_heads) * HEAD_DIM;
    int visible_keys = CAUSAL ? min(keys, first_query + BLOCK_ROWS) : keys;
    int key_blocks = (visible_keys + LOOP_ROWS - 1) / LOOP_ROWS;

    u32 q_tile = shared_address(attention_shared), dy_tile = q_tile + BLOCK_ROWS * ROW_BYTES;
    u32 stages = dy_tile + BLOCK_ROWS * ROW_BYTES;
    auto load_keys = [&](int block) {
        u32 to = stages + block % 2 * 2 * LOOP_TILE_BYTES;
        i64 start = kv_start + (i64)block * LOOP_ROWS * kv_stride;
        int valid = keys - block * LOOP_ROWS;
        load_tile<LOOP_ROWS, BLOCK_THREADS>(to, k + start, kv_stride, valid);
        load_tile<LOOP_ROWS, BLOCK_THREADS>(to + LOOP_TILE_BYTES, v + start, kv_stride, valid);
    };
    const bf16* q_start = q + first_row * q_stride + head * HEAD_DIM;
    const bf16* dy_start = dy + first_row * dy_stride + head * HEAD_DIM;
    load_tile<BLOCK_ROWS, BLOCK_THREADS>(q_tile, q_start, q_stride, queries - first_query);
    load_tile<BLOCK_ROWS, BLOCK_THREADS>(dy_tile, dy_start, dy_stride, queries - first_query);
    load_keys(0);
    cp_async_commit();

    LaneOffsets lanes = lane_offsets(lane);
    HeadDropout dropout = HEAD_DROPOUT(sequence, head);
    int warp_row = warp * ROW_TILES * 16, warp_query = first_query + warp_row;
    int lane_query = warp_query + lane / 4, lane_key = 2 * (lane % 4);
    float row_lse[ROW_TILES][2], row_delta[ROW_TILES][2];
    i64 statistics = ((i64)sequence * heads + head) * padded_queries + lane_query;
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        row_lse[i / 2][i % 2] = lse[statistics + i * 8];
        row_delta[i / 2][i % 2] = delta[statistics + i * 8];
    }
    GradTile dq_sum;
    set_zero(dq_sum);
    u32 q_rows[DIM_STEPS][ROW_TILES][4], dy_rows[DIM_STEPS][ROW_TILES][4];
    for (int block = 0; block < key_blocks; block++) {
        // The keys have arrived, and no warp reads those of the previous step.
        cp_async_wait_all();
        __syncthreads();
        if (block + 1 < key_blocks) load_keys(block + 1);
        cp_async_commit();
        if (block == 0) {
            load_rows(q_rows, q_tile + warp_row * ROW_BYTES, lanes);
            load_rows(dy_rows, dy_tile + warp_row * ROW_BYTES, lanes);
        }
#pragma unroll
        for (int row = 0; row < LOOP_ROWS; row += STEP_ROWS) {
            int key = block * LOOP_ROWS + row, next_key = key + STEP_ROWS;
            if (key >= keys || (CAUSAL && key >= warp_query + ROW_TILES * 16)) continue;
            u32 k_rows = stages + block % 2 * 2 * LOOP_TILE_BYTES + row * ROW_BYTES;
            bool masked = next_key > keys || (CAUSAL && next_key > warp_query + 1);
            StepTile s, dp;
            multiply_rows(s, q_rows, k_rows, lanes);
            multiply_rows(dp, dy_rows, k_rows + LOOP_TILE_BYTES, lanes);
            score_grads(s, dp, row_lse, row_delta, lane_query, key + lane_key, keys, scale * LOG2E, masked,
                        dropout);
            add_product(dq_sum, s, k_rows, lanes);
        }
    }
    i64 start = (first_row + warp_row) * dq_stride + head * HEAD_DIM;
    store_rows(dq, start, dq_stride, queries - warp_query, dq_sum, lane, scale);
}
