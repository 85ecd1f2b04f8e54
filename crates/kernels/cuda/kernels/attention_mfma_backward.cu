// Backward pass of attention by MFMA, bf16. Two kernels, so that each gradient is summed by one block in a
// fixed order: one over keys for dk and dv, one over queries for dq.
//
// `lse` and `delta` are those of attention_prepare_backward: per head, the log-sum-exp times log2(e), and
// the row sum of dy * y, padded to `padded_queries`. The probabilities of padded queries are 0.
//
// HEAD_DIM, CAUSAL, DROPOUT, LOOP_ROWS; ACCUMULATE: gradients are f32 and are added to.

// Writes or accumulates the own rows of a wave.
DEVICE void store_grads(void* to, i64 start, i64 stride, int valid_rows, const Sums& sums, int lane,
                        float factor) {
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        int row = n * 16 + lane % 16;
        if (row >= valid_rows) continue;
        i64 at = start + row * stride;
#if ACCUMULATE
        merge_f32((float*)to + at, sums, n, lane, 1, factor);
#else
        store_bf16((bf16*)to + at, sums, n, lane, factor);
#endif
    }
}

// Probabilities in place of scores, queries by keys, from the lane's first query and key on. Dropped
// probabilities are negative.
DEVICE void key_probabilities(Scores& p, const float* lse, int first_query, int first_key, float scale_log2,
                              bool masked, const HeadDropout& dropout) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
        Accumulator row_lse = *(const Accumulator*)(lse + m * 16);
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int query = first_query + m * 16 + i, key = first_key + n * 16;
                float value = exp2_fast(fmaf(p[m][n][i], scale_log2, -row_lse[i]));
                if (masked && key > query) value = 0;
                p[m][n][i] = dropout.drops(query, key) ? -value : value;
            }
        }
    }
}

// Gradients of scores, queries by keys, in place of their probabilities.
DEVICE void key_score_grads(Scores& p, const Scores& dp, const float* delta, const HeadDropout& dropout) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
        Accumulator row_delta = *(const Accumulator*)(delta + m * 16);
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[m][n][i] = score_grad(p[m][n][i], dp[m][n][i], row_delta[i], dropout);
            }
        }
    }
}

// dv += dyᵀ p, where dropped probabilities are 0.
DEVICE void add_values_grad(Sums& dv, const unsigned char* dy_transposed, const Scores& p, int lane) {
    if constexpr (DROPOUT) {
        Scores kept;
#pragma unroll
        for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) kept[m][n][i] = p[m][n][i] < 0 ? 0 : p[m][n][i];
            }
        }
        add_product(dv, dy_transposed, kept, lane);
    } else {
        add_product(dv, dy_transposed, p, lane);
    }
}

// A block has some keys and values of a key/value head, and loops over the queries of the heads that share
// them.
KERNEL __launch_bounds__(BLOCK_THREADS, RESIDENT_WAVES)
attention_mfma_backward_kv(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                           const float* delta, void* dk, void* dv, int queries, int keys,
                           int padded_queries, int heads, int kv_heads, i64 q_stride, i64 kv_stride,
                           i64 dkv_stride, float scale, DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % 64, wave = threadIdx.x / 64;
    // Blocks that many queries see start first.
    u32 key_blocks = (keys + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_key = blockIdx.x % key_blocks * BLOCK_ROWS;
    int kv_head = blockIdx.x / key_blocks % kv_heads, sequence = blockIdx.x / key_blocks / kv_heads;
    int group = heads / kv_heads, wave_key = first_key + wave * WAVE_ROWS;
    i64 key_row = (i64)sequence * keys + wave_key, dy_stride = (i64)heads * HEAD_DIM;

    unsigned char *q_tile = attention_shared, *dy_tile = q_tile + ROW_TILE_BYTES;
    unsigned char *q_transposed = dy_tile + ROW_TILE_BYTES;
    unsigned char *dy_transposed = q_transposed + TRANSPOSED_TILE_BYTES;

    // Under the causal mask, queries before the first key see no key of the block.
    int skipped = CAUSAL ? first_key / LOOP_ROWS : 0;
    int query_blocks = max(0, (queries + LOOP_ROWS - 1) / LOOP_ROWS - skipped);
    int steps = group * query_blocks;
    LoopRows q_rows, dy_rows;
    auto load_queries = [&](int step) {
        int head = kv_head * group + step / query_blocks;
        int first_query = (skipped + step % query_blocks) * LOOP_ROWS;
        i64 row = (i64)sequence * queries + first_query;
        q_rows.load(q + row * q_stride + head * HEAD_DIM, q_stride, queries - first_query);
        dy_rows.load(dy + row * dy_stride + head * HEAD_DIM, dy_stride, queries - first_query);
    };
    if (steps > 0) load_queries(0);
    OwnRows k_rows, v_rows;
    i64 kv_start = key_row * kv_stride + kv_head * HEAD_DIM;
    load_own_rows(k_rows, k + kv_start, kv_stride, keys - wave_key, lane);
    load_own_rows(v_rows, v + kv_start, kv_stride, keys - wave_key, lane);

    int lane_key = wave_key + lane % 16, lane_query = tile_row(lane, 0);
    Sums dk_sum, dv_sum;
    set_zero(dk_sum);
    set_zero(dv_sum);
    for (int step = 0; step < steps; step++) {
        // No wave reads the previous queries.
        __syncthreads();
        q_rows.store(q_tile);
        dy_rows.store(dy_tile);
        q_rows.store_transposed(q_transposed);
        dy_rows.store_transposed(dy_transposed);
        __syncthreads();
        if (step + 1 < steps) load_queries(step + 1);
        int head = kv_head * group + step / query_blocks;
        int query = (skipped + step % query_blocks) * LOOP_ROWS;
        if (CAUSAL && query + LOOP_ROWS <= wave_key) continue;
        HeadDropout dropout = HEAD_DROPOUT(sequence, head);
        i64 statistics = ((i64)sequence * heads + head) * padded_queries + query + lane_query;
        bool masked = CAUSAL && query < wave_key + WAVE_ROWS - 1;
        Scores p, dp;
        multiply_rows(p, q_tile, k_rows, lane);
        key_probabilities(p, lse + statistics, query + lane_query, lane_key, scale * LOG2E, masked, dropout);
        add_values_grad(dv_sum, dy_transposed, p, lane);
        multiply_rows(dp, dy_tile, v_rows, lane);
        key_score_grads(p, dp, delta + statistics, dropout);
        add_product(dk_sum, q_transposed, p, lane);
    }
    i64 start = key_row * dkv_stride + kv_head * HEAD_DIM;
    store_grads(dk, start, dkv_stride, keys - wave_key, dk_sum, lane, scale);
    store_grads(dv, start, dkv_stride, keys - wave_key, dv_sum, lane, dropout_scale);
}

// Statistics of a lane's queries.
struct QueryStatistics {
    float lse[COLUMN_TILES], delta[COLUMN_TILES];
};

// Gradients of scores, keys by queries, in place of the scores.
DEVICE void query_score_grads(Scores& s, const Scores& dp, const QueryStatistics& of, int first_query,
                              int first_key, int keys, float scale_log2, bool masked,
                              const HeadDropout& dropout) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int query = first_query + n * 16, key = first_key + m * 16 + i;
                float p = exp2_fast(fmaf(s[m][n][i], scale_log2, -of.lse[n]));
                if (masked && (key >= keys || (CAUSAL && key > query))) p = 0;
                if (dropout.drops(query, key)) p = -p;
                s[m][n][i] = score_grad(p, dp[m][n][i], of.delta[n], dropout);
            }
        }
    }
}

// A block has some queries of a head and loops over its keys.
KERNEL __launch_bounds__(BLOCK_THREADS, RESIDENT_WAVES)
attention_mfma_backward_q(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                          const float* delta, void* dq, int queries, int keys, int padded_queries,
                          int heads, int kv_heads, i64 q_stride, i64 kv_stride, i64 dq_stride, float scale,
                          DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % 64, wave = threadIdx.x / 64;
    // Blocks with many visible keys start first.
    u32 query_blocks = (queries + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_query = (query_blocks - 1 - blockIdx.x % query_blocks) * BLOCK_ROWS;
    int head = blockIdx.x / query_blocks % heads, sequence = blockIdx.x / query_blocks / heads;
    int wave_query = first_query + wave * WAVE_ROWS;
    i64 wave_row = (i64)sequence * queries + wave_query, dy_stride = (i64)heads * HEAD_DIM;
    i64 kv_start = (i64)sequence * keys * kv_stride + head / (heads / kv_heads) * HEAD_DIM;
    int visible_keys = CAUSAL ? min(keys, first_query + BLOCK_ROWS) : keys;

    unsigned char *k_tile = attention_shared, *v_tile = k_tile + ROW_TILE_BYTES;
    unsigned char *k_transposed = v_tile + ROW_TILE_BYTES;
    LoopRows k_rows, v_rows;
    auto load_keys = [&](int first_key) {
        i64 start = kv_start + first_key * kv_stride;
        k_rows.load(k + start, kv_stride, keys - first_key);
        v_rows.load(v + start, kv_stride, keys - first_key);
    };
    load_keys(0);
    OwnRows q_rows, dy_rows;
    load_own_rows(q_rows, q + wave_row * q_stride + head * HEAD_DIM, q_stride, queries - wave_query, lane);
    load_own_rows(dy_rows, dy + wave_row * dy_stride + head * HEAD_DIM, dy_stride, queries - wave_query,
                  lane);

    HeadDropout dropout = HEAD_DROPOUT(sequence, head);
    int lane_query = wave_query + lane % 16, lane_key = tile_row(lane, 0);
    QueryStatistics of;
    i64 statistics = ((i64)sequence * heads + head) * padded_queries + lane_query;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        of.lse[n] = lse[statistics + n * 16];
        of.delta[n] = delta[statistics + n * 16];
    }
    Sums dq_sum;
    set_zero(dq_sum);
    for (int first_key = 0; first_key < visible_keys; first_key += LOOP_ROWS) {
        int next_key = first_key + LOOP_ROWS;
        // No wave reads the previous keys.
        __syncthreads();
        k_rows.store(k_tile);
        v_rows.store(v_tile);
        k_rows.store_transposed(k_transposed);
        __syncthreads();
        if (next_key < visible_keys) load_keys(next_key);
        if (CAUSAL && first_key >= wave_query + WAVE_ROWS) continue;
        bool masked = next_key > keys || (CAUSAL && next_key > wave_query + 1);
        Scores s, dp;
        multiply_rows(s, k_tile, q_rows, lane);
        multiply_rows(dp, v_tile, dy_rows, lane);
        query_score_grads(s, dp, of, lane_query, first_key + lane_key, keys, scale * LOG2E, masked, dropout);
        add_product(dq_sum, k_transposed, s, lane);
    }
    i64 start = wave_row * dq_stride + head * HEAD_DIM;
    store_grads(dq, start, dq_stride, queries - wave_query, dq_sum, lane, scale);
}
