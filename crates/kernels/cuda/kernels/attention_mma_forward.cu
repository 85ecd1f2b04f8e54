// Forward pass of attention by tensor cores (FlashAttention-2), bf16.
//
// A block has 128 queries of a head, a warp 32 of them, and loops over blocks of keys. The next keys are
// loaded during the softmax and the product with the values; the values are loaded during the product of
// queries and keys.
//
// HEAD_DIM, CAUSAL, DROPOUT; MERGE: y is f32 and is merged with the attention to earlier chunks of keys.

#define WARPS 4
#define ROW_TILES 2
#define BLOCK_THREADS (WARPS * 32)
#define BLOCK_QUERIES (WARPS * ROW_TILES * 16)
// As registers allow.
#define BLOCK_KEYS (HEAD_DIM == 128 && DROPOUT ? 32 : 64)
#define KEY_TILES (BLOCK_KEYS / 8)

// Online softmax of the rows of a warp. A lane has two rows of each row tile.
struct Softmax {
    float max[ROW_TILES][2];
    // Sum over the columns of this lane.
    float sum[ROW_TILES][2];
};

// Sets the scores of masked keys to -inf. The first query and key are those of the lane.
DEVICE void mask_scores(float (&s)[ROW_TILES][KEY_TILES][4], int first_query, int first_key, int keys) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int query = first_query + m * 16 + (i >> 1) * 8;
                int key = first_key + n * 8 + (i & 1);
                if (key >= keys || (CAUSAL && key > query)) s[m][n][i] = NEG_INFINITY;
            }
        }
    }
}

// Turns the scores of half `half` of row tile `m` into exponentials relative to the new maximum of the
// row, and rescales the output.
DEVICE void update_softmax(float (&s)[KEY_TILES][4], float (&o)[DIM_TILES][4], Softmax& softmax, int m,
                           int half, float scale_log2) {
    float max = softmax.max[m][half];
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    max = fmaxf(max, shuffle_xor(max, 1));
    max = fmaxf(max, shuffle_xor(max, 2));
    float correction = exp2_fast((softmax.max[m][half] - max) * scale_log2);
    float shift = max * scale_log2, sum = 0;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            s[n][i] = exp2_fast(fmaf(s[n][i], scale_log2, -shift));
            sum += s[n][i];
        }
    }
    softmax.max[m][half] = max;
    softmax.sum[m][half] = softmax.sum[m][half] * correction + sum;
#pragma unroll
    for (int d = 0; d < DIM_TILES; d++) {
        o[d][2 * half] *= correction;
        o[d][2 * half + 1] *= correction;
    }
}

// Zeroes the dropped probabilities.
DEVICE void drop(float (&p)[ROW_TILES][KEY_TILES][4], int first_query, int first_key,
                 const HeadDropout& dropout) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int query = first_query + m * 16 + (i >> 1) * 8;
                if (dropout.drops(query, first_key + n * 8 + (i & 1))) p[m][n][i] = 0;
            }
        }
    }
}

// Completes the sums of the rows, whose columns are spread over four lanes.
DEVICE void sum_rows(Softmax& softmax) {
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        float& sum = softmax.sum[i / 2][i % 2];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
    }
}

// Writes a row of the output and its log-sum-exp, or merges them with earlier ones.
DEVICE void store_row(void* y, u64 y_start, float* lse, const float (&o)[DIM_TILES][4], int half, int lane,
                      float row_lse, float factor) {
#if MERGE
    float old = *lse;
    // All lanes of the row read the old value before one of them writes the new one.
    __syncwarp(0xf << (lane & 28));
    float max = fmaxf(old, row_lse);
    float merged = max + logf(expf(old - max) + expf(row_lse - max));
    merge_f32((float*)y + y_start, o, half, lane, expf(old - merged), expf(row_lse - merged) * factor);
    if ((lane & 3) == 0) *lse = merged;
#else
    store_bf16((bf16*)y + y_start, o, half, lane, factor);
    if ((lane & 3) == 0) *lse = row_lse;
#endif
}

KERNEL __launch_bounds__(BLOCK_THREADS)
attention_mma_forward(const bf16* q, const bf16* k, const bf16* v, void* y, float* lse, int queries,
                      int keys, int heads, int kv_heads, i64 q_stride, i64 kv_stride, float scale,
                      DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Blocks with many visible keys start first.
    u32 query_blocks = (queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
    int first_query = (query_blocks - 1 - blockIdx.x % query_blocks) * BLOCK_QUERIES;
    int head = blockIdx.x / query_blocks % heads, sequence = blockIdx.x / query_blocks / heads;
    i64 first_row = (i64)sequence * queries;
    q += (first_row + first_query) * q_stride + head * HEAD_DIM;
    i64 kv_start = (i64)sequence * keys * kv_stride + head / (heads / kv_heads) * HEAD_DIM;
    k += kv_start;
    v += kv_start;
    int visible_keys = CAUSAL ? min(keys, first_query + BLOCK_QUERIES) : keys;

    u32 q_tile = shared_address(attention_shared);
    u32 k_tile = q_tile + BLOCK_QUERIES * ROW_BYTES, v_tile = k_tile + BLOCK_KEYS * ROW_BYTES;
    load_tile<BLOCK_QUERIES, BLOCK_THREADS>(q_tile, q, q_stride, queries - first_query);
    load_tile<BLOCK_KEYS, BLOCK_THREADS>(k_tile, k, kv_stride, keys);
    cp_async_commit();

    LaneOffsets lanes = lane_offsets(lane);
    HeadDropout dropout = HEAD_DROPOUT(sequence, head);
    u32 warp_rows = q_tile + warp * ROW_TILES * 16 * ROW_BYTES;
    int warp_query = first_query + warp * ROW_TILES * 16;
    int lane_query = warp_query + lane / 4, lane_key = 2 * (lane % 4);
    float o[ROW_TILES][DIM_TILES][4];
    set_zero(o);
    Softmax softmax;
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        softmax.max[i / 2][i % 2] = NEG_INFINITY;
        softmax.sum[i / 2][i % 2] = 0;
    }

    for (int first_key = 0; first_key < visible_keys; first_key += BLOCK_KEYS) {
        int next_key = first_key + BLOCK_KEYS;
        // Warps whose queries precede all keys of the block only take part in the loads.
        bool active = !CAUSAL || first_key < warp_query + ROW_TILES * 16;
        float s[ROW_TILES][KEY_TILES][4];
        // The keys have arrived, and no warp reads the previous values.
        cp_async_wait_all();
        __syncthreads();
        load_tile<BLOCK_KEYS, BLOCK_THREADS>(v_tile, v + first_key * kv_stride, kv_stride,
                                             keys - first_key);
        cp_async_commit();
        if (active) multiply_rows(s, warp_rows, k_tile, lanes);
        // The values have arrived, and no warp reads these keys.
        cp_async_wait_all();
        __syncthreads();
        if (next_key < visible_keys) {
            load_tile<BLOCK_KEYS, BLOCK_THREADS>(k_tile, k + next_key * kv_stride, kv_stride,
                                                 keys - next_key);
        }
        cp_async_commit();
        if (!active) continue;
        if (next_key > keys || (CAUSAL && next_key > warp_query + 1)) {
            mask_scores(s, lane_query, first_key + lane_key, keys);
        }
#pragma unroll
        for (int i = 0; i < ROW_TILES * 2; i++) {
            update_softmax(s[i / 2], o[i / 2], softmax, i / 2, i % 2, scale * LOG2E);
        }
        if (DROPOUT) drop(s, lane_query, first_key + lane_key, dropout);
        add_product(o, s, v_tile, lanes);
    }

    sum_rows(softmax);
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        int query = lane_query + i * 8;
        if (query >= queries) continue;
        float sum = softmax.sum[i / 2][i % 2];
        float row_lse = softmax.max[i / 2][i % 2] * scale + logf(sum);
        u64 row_head = (first_row + query) * heads + head;
        u64 head_row = ((i64)sequence * heads + head) * queries + query;
        store_row(y, row_head * HEAD_DIM, lse + (MERGE ? row_head : head_row), o[i / 2], i % 2, lane,
                  row_lse, dropout_scale / sum);
    }
}
