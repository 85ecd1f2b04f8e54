// Forward pass of attention by MFMA (FlashAttention-2), bf16.
//
// A block has 128 queries of a head, a wave 32 of them, and loops over blocks of keys. The next keys and values
// are loaded into registers while the current ones in LDS are used.
//
// HEAD_DIM, CAUSAL, DROPOUT, LOOP_ROWS; MERGE: y is f32 and is merged with the attention to earlier chunks of
// keys.

// Online softmax of a wave's queries. Four lanes share a query: the sums are those of one lane's keys.
struct Softmax {
    float max[COLUMN_TILES], sum[COLUMN_TILES];
};

// Sets the scores of masked keys to -inf. The first query and key are those of the lane.
DEVICE void mask_scores(Scores& s, int first_query, int first_key, int keys) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int query = first_query + n * 16, key = first_key + m * 16 + i;
                if (key >= keys || (CAUSAL && key > query)) s[m][n][i] = NEG_INFINITY;
            }
        }
    }
}

// Turns the scores of column tile n into exponentials relative to the new maxima of its queries, and rescales
// the output.
DEVICE void update_softmax(Scores& s, Sums& o, Softmax& softmax, int n, float scale_log2) {
    float max = softmax.max[n];
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) max = fmaxf(max, s[m][n][i]);
    }
    max = fmaxf(max, shuffle_xor(max, 16));
    max = fmaxf(max, shuffle_xor(max, 32));
    float correction = exp2_fast((softmax.max[n] - max) * scale_log2);
    float shift = max * scale_log2, sum = 0;
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[m][n][i] = exp2_fast(fmaf(s[m][n][i], scale_log2, -shift));
            sum += s[m][n][i];
        }
    }
    softmax.max[n] = max;
    softmax.sum[n] = softmax.sum[n] * correction + sum;
#pragma unroll
    for (int d = 0; d < DIM_TILES; d++) o[d][n] *= correction;
}

// Zeroes the dropped probabilities.
DEVICE void drop(Scores& p, int first_query, int first_key, const HeadDropout& dropout) {
#pragma unroll
    for (int m = 0; m < LOOP_TILES; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (dropout.drops(first_query + n * 16, first_key + m * 16 + i)) p[m][n][i] = 0;
            }
        }
    }
}

// Writes a query's output and its log-sum-exp, or merges them with earlier ones. All lanes call it.
DEVICE void store_query(void* y, u64 y_start, float* lse, const Sums& o, int n, int lane, bool valid,
                        float row_lse, float factor) {
#if MERGE
    // One of the four lanes of a query reads the value that it writes below.
    float old = valid && lane < 16 ? *lse : 0.0f;
    old += shuffle_xor(old, 16);
    old += shuffle_xor(old, 32);
    float max = fmaxf(old, row_lse);
    float merged = max + logf(expf(old - max) + expf(row_lse - max));
    if (!valid) return;
    merge_f32((float*)y + y_start, o, n, lane, expf(old - merged), expf(row_lse - merged) * factor);
    if (lane < 16) *lse = merged;
#else
    if (!valid) return;
    store_bf16((bf16*)y + y_start, o, n, lane, factor);
    if (lane < 16) *lse = row_lse;
#endif
}

KERNEL __launch_bounds__(BLOCK_THREADS, RESIDENT_WAVES)
attention_mfma_forward(const bf16* q, const bf16* k, const bf16* v, void* y, float* lse, int queries,
                       int keys, int heads, int kv_heads, i64 q_stride, i64 kv_stride, float scale,
                       DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % 64, wave = threadIdx.x / 64;
    // Blocks with many visible keys start first.
    u32 query_blocks = (queries + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_query = (query_blocks - 1 - blockIdx.x % query_blocks) * BLOCK_ROWS;
    int head = blockIdx.x / query_blocks % heads, sequence = blockIdx.x / query_blocks / heads;
    int wave_query = first_query + wave * WAVE_ROWS;
    i64 first_row = (i64)sequence * queries;
    i64 kv_start = (i64)sequence * keys * kv_stride + head / (heads / kv_heads) * HEAD_DIM;
    k += kv_start;
    v += kv_start;
    int visible_keys = CAUSAL ? min(keys, first_query + BLOCK_ROWS) : keys;

    unsigned char *k_tile = attention_shared, *v_transposed = k_tile + ROW_TILE_BYTES;
    LoopRows k_rows, v_rows;
    k_rows.load(k, kv_stride, keys);
    v_rows.load(v, kv_stride, keys);
    OwnRows q_rows;
    load_own_rows(q_rows, q + (first_row + wave_query) * q_stride + head * HEAD_DIM, q_stride,
                  queries - wave_query, lane);

    HeadDropout dropout = HEAD_DROPOUT(sequence, head);
    int lane_query = wave_query + lane % 16, lane_key = tile_row(lane, 0);
    Sums o;
    set_zero(o);
    Softmax softmax;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) softmax.max[n] = NEG_INFINITY, softmax.sum[n] = 0;

    for (int first_key = 0; first_key < visible_keys; first_key += LOOP_ROWS) {
        int next_key = first_key + LOOP_ROWS;
        // No wave reads the previous keys and values.
        __syncthreads();
        k_rows.store(k_tile);
        v_rows.store_transposed(v_transposed);
        __syncthreads();
        if (next_key < visible_keys) {
            k_rows.load(k + next_key * kv_stride, kv_stride, keys - next_key);
            v_rows.load(v + next_key * kv_stride, kv_stride, keys - next_key);
        }
        // Waves whose queries precede all keys of the block only take part in the loads.
        if (CAUSAL && first_key >= wave_query + WAVE_ROWS) continue;
        Scores s;
        multiply_rows(s, k_tile, q_rows, lane);
        if (next_key > keys || (CAUSAL && next_key > wave_query + 1)) {
            mask_scores(s, lane_query, first_key + lane_key, keys);
        }
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) update_softmax(s, o, softmax, n, scale * LOG2E);
        if (DROPOUT) drop(s, lane_query, first_key + lane_key, dropout);
        add_product(o, v_transposed, s, lane);
    }

#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        int query = lane_query + n * 16;
        float sum = softmax.sum[n];
        sum += shuffle_xor(sum, 16);
        sum += shuffle_xor(sum, 32);
        u64 row_head = (first_row + query) * heads + head;
        u64 head_row = ((i64)sequence * heads + head) * queries + query;
        store_query(y, row_head * HEAD_DIM, lse + (MERGE ? row_head : head_row), o, n, lane, query < queries,
                    softmax.max[n] * scale + logf(sum), dropout_scale / sum);
    }
}
