// Attention without tensor cores: f32, and head dimensions that tensor cores do not support.
//
// A warp has ROWS rows. It loops over tiles of rows in shared memory: a lane computes the weights of one row
// of a tile, then all lanes add the weighted rows, a lane for every WARP-th dimension.
//
// HEAD_DIM, CAUSAL, DROPOUT; IN_BF16 of q, k and v, DY_BF16, OUT_BF16 of y or of gradients; MERGE: y is merged
// with the attention to earlier chunks of keys; ACCUMULATE: gradients are added to; WARP_THREADS: the warp
// size that the grid assumes.

static_assert(WARP == WARP_THREADS, "the grid assumes another warp size");

#define ROWS 4
#define WARPS (HEAD_DIM > 128 ? 2 : 4)
#define BLOCK_THREADS (WARPS * WARP)
#define BLOCK_ROWS (WARPS * ROWS)
// AMD GPUs have 64 KiB of shared memory.
#define TILE_ROWS (ON_HIP && HEAD_DIM > 128 ? 16 : 32)
#define PADDED_DIM ((HEAD_DIM + 3) / 4 * 4)
// Odd, so that lanes with different rows of a tile access different banks.
#define TILE_PITCH (PADDED_DIM + 1)
#define LANE_DIMS ((HEAD_DIM + WARP - 1) / WARP)

typedef ElementType<IN_BF16>::type In;
typedef ElementType<DY_BF16>::type Dy;
typedef ElementType<OUT_BF16>::type Out;
typedef float RowSums[ROWS][LANE_DIMS];

extern __shared__ __align__(16) float attention_floats[];

struct Shared {
    // The rows of the block, PADDED_DIM elements each.
    float *first_rows, *second_rows;
    // Weights of the rows of a tile, by warp.
    float4 *first_weights, *second_weights;
    float *first_tile, *second_tile;
};

DEVICE Shared shared_memory() {
    Shared shared;
    shared.first_rows = attention_floats;
    shared.second_rows = shared.first_rows + BLOCK_ROWS * PADDED_DIM;
    shared.first_weights = (float4*)(shared.second_rows + BLOCK_ROWS * PADDED_DIM);
    shared.second_weights = shared.first_weights + WARPS * TILE_ROWS;
    shared.first_tile = (float*)(shared.second_weights + WARPS * TILE_ROWS);
    shared.second_tile = shared.first_tile + TILE_ROWS * TILE_PITCH;
    return shared;
}

// Copies rows to shared memory; rows from `valid_rows` on become zero.
template <class T>
DEVICE void load_rows(float* to, int pitch, int rows, const T* from, i64 stride, int valid_rows) {
    for (int i = threadIdx.x; i < rows * PADDED_DIM; i += BLOCK_THREADS) {
        int row = i / PADDED_DIM, d = i % PADDED_DIM;
        bool valid = row < valid_rows && d < HEAD_DIM;
        to[row * pitch + d] = valid ? to_float(from[row * stride + d]) : 0;
    }
}

// Products of this lane's row of a tile with the rows of the warp.
DEVICE void multiply_rows(float (&to)[ROWS], const float* tile, const float* rows, int lane) {
    const float* row = tile + lane % TILE_ROWS * TILE_PITCH;
#pragma unroll
    for (int r = 0; r < ROWS; r++) to[r] = 0;
#pragma unroll 4
    for (int d = 0; d < PADDED_DIM; d += 4) {
        float x[4] = {row[d], row[d + 1], row[d + 2], row[d + 3]};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 y = *(const float4*)(rows + r * PADDED_DIM + d);
            to[r] = fmaf(x[3], y.w, fmaf(x[2], y.z, fmaf(x[1], y.y, fmaf(x[0], y.x, to[r]))));
        }
    }
}

DEVICE void store_weights(float4* to, const float (&weights)[ROWS], int lane) {
    if (lane < TILE_ROWS) to[lane] = make_float4(weights[0], weights[1], weights[2], weights[3]);
}

// Adds the weighted rows of a tile.
DEVICE void add_rows(RowSums& sums, const float4* weights, const float* tile, int lane) {
    for (int j = 0; j < TILE_ROWS; j++) {
        float4 weight = weights[j];
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            int d = lane + i * WARP;
            float x = d < HEAD_DIM ? tile[j * TILE_PITCH + d] : 0;
            sums[0][i] = fmaf(weight.x, x, sums[0][i]);
            sums[1][i] = fmaf(weight.y, x, sums[1][i]);
            sums[2][i] = fmaf(weight.z, x, sums[2][i]);
            sums[3][i] = fmaf(weight.w, x, sums[3][i]);
        }
    }
}

DEVICE void set_zero(RowSums& sums) {
#pragma unroll
    for (int i = 0; i < ROWS * LANE_DIMS; i++) sums[i / LANE_DIMS][i % LANE_DIMS] = 0;
}

// to = to * keep + sums * factor. `keep` 0 ignores the old values.
DEVICE void store_sums(Out* to, const float (&sums)[LANE_DIMS], int lane, float keep, float factor) {
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int d = lane + i * WARP;
        if (d >= HEAD_DIM) continue;
        float old = keep != 0 ? to_float(to[d]) * keep : 0;
        from_float(old + sums[i] * factor, to + d);
    }
}

KERNEL __launch_bounds__(BLOCK_THREADS)
attention_generic_forward(const In* q, const In* k, const In* v, Out* y, float* lse, int queries, int keys,
                          int heads, int kv_heads, i64 q_stride, i64 kv_stride, float scale,
                          DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 query_blocks = (queries + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_query = (query_blocks - 1 - blockIdx.x % query_blocks) * BLOCK_ROWS;
    int head = blockIdx.x / query_blocks % heads, sequence = blockIdx.x / query_blocks / heads;
    i64 first_row = (i64)sequence * queries;
    i64 kv_start = (i64)sequence * keys * kv_stride + head / (heads / kv_heads) * HEAD_DIM;
    HeadDropout dropout = HEAD_DROPOUT(sequence, head);
    Shared shared = shared_memory();
    load_rows(shared.first_rows, PADDED_DIM, BLOCK_ROWS,
              q + (first_row + first_query) * q_stride + head * HEAD_DIM, q_stride, queries - first_query);
    const float* q_rows = shared.first_rows + warp * ROWS * PADDED_DIM;
    float4* weights = shared.first_weights + warp * TILE_ROWS;
    int warp_query = first_query + warp * ROWS;
    float max[ROWS], sum[ROWS];
    RowSums o;
    set_zero(o);
#pragma unroll
    for (int r = 0; r < ROWS; r++) max[r] = NEG_INFINITY, sum[r] = 0;

    int visible_keys = CAUSAL ? min(keys, first_query + BLOCK_ROWS) : keys;
    for (int first_key = 0; first_key < visible_keys; first_key += TILE_ROWS) {
        i64 start = kv_start + first_key * kv_stride;
        __syncthreads();
        load_rows(shared.first_tile, TILE_PITCH, TILE_ROWS, k + start, kv_stride, keys - first_key);
        load_rows(shared.second_tile, TILE_PITCH, TILE_ROWS, v + start, kv_stride, keys - first_key);
        __syncthreads();
        float p[ROWS];
        multiply_rows(p, shared.first_tile, q_rows, lane);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int query = warp_query + r, key = first_key + lane;
            bool visible = lane < TILE_ROWS && key < keys && (!CAUSAL || key <= query);
            float score = visible ? p[r] * scale : NEG_INFINITY;
            float new_max = fmaxf(max[r], warp_max(score));
            float correction = expf(max[r] - new_max);
            p[r] = visible ? expf(score - new_max) : 0;
            max[r] = new_max;
            sum[r] = sum[r] * correction + p[r];
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) o[r][i] *= correction;
            if (dropout.drops(query, key)) p[r] = 0;
        }
        store_weights(weights, p, lane);
        __syncthreads();
        add_rows(o, weights, shared.second_tile, lane);
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float row_sum = warp_sum(sum[r]);
        int query = warp_query + r;
        if (query >= queries) continue;
        float row_lse = max[r] + logf(row_sum), factor = dropout_scale / row_sum, keep = 0;
        u64 row_head = (first_row + query) * heads + head;
        float* to = lse + (MERGE ? row_head : ((i64)sequence * heads + head) * queries + query);
        if (MERGE) {
            // One lane reads the value that it writes below.
            float old = warp_sum(lane == 0 ? *to : 0.0f), larger = fmaxf(old, row_lse);
            float merged = larger + logf(expf(old - larger) + expf(row_lse - larger));
            keep = expf(old - merged);
            factor *= expf(row_lse - merged);
            row_lse = merged;
        }
        store_sums(y + row_head * HEAD_DIM, o[r], lane, keep, factor);
        if (lane == 0) *to = row_lse;
    }
}

// A query, its statistics, and a key.
struct Pair {
    int query, key;
    float lse, delta;
    bool visible;
};

// The probability of a key after dropout, and the gradient of its score without the scale.
DEVICE void grads(float& p, float& ds, float score, float dp, Pair pair, float scale_log2,
                  const HeadDropout& dropout) {
    float probability = pair.visible ? exp2f(fmaf(score, scale_log2, -pair.lse)) : 0;
    float factor = dropout.drops(pair.query, pair.key) ? 0 : dropout.scale;
    p = probability * factor;
    ds = pair.visible ? probability * (dp * factor - pair.delta) : 0;
}

// dk and dv: a warp has ROWS keys and loops over the queries of the heads that share them.
KERNEL __launch_bounds__(BLOCK_THREADS)
attention_generic_backward_kv(const In* q, const In* k, const In* v, const Dy* dy, const float* lse,
                              const float* delta, Out* dk, Out* dv, int queries, int keys,
                              int padded_queries, int heads, int kv_heads, i64 q_stride, i64 kv_stride,
                              i64 dkv_stride, float scale, DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 key_blocks = (keys + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_key = blockIdx.x % key_blocks * BLOCK_ROWS;
    int kv_head = blockIdx.x / key_blocks % kv_heads, sequence = blockIdx.x / key_blocks / kv_heads;
    int group = heads / kv_heads, warp_key = first_key + warp * ROWS;
    i64 key_row = (i64)sequence * keys, dy_stride = (i64)heads * HEAD_DIM;
    i64 kv_start = (key_row + first_key) * kv_stride + kv_head * HEAD_DIM;
    Shared shared = shared_memory();
    load_rows(shared.first_rows, PADDED_DIM, BLOCK_ROWS, k + kv_start, kv_stride, keys - first_key);
    load_rows(shared.second_rows, PADDED_DIM, BLOCK_ROWS, v + kv_start, kv_stride, keys - first_key);
    const float* k_rows = shared.first_rows + warp * ROWS * PADDED_DIM;
    const float* v_rows = shared.second_rows + warp * ROWS * PADDED_DIM;
    float4* p_weights = shared.first_weights + warp * TILE_ROWS;
    float4* ds_weights = shared.second_weights + warp * TILE_ROWS;
    RowSums dk_sums, dv_sums;
    set_zero(dk_sums);
    set_zero(dv_sums);

    // Under the causal mask, queries before the first key see no key of the block.
    int seen_from = CAUSAL ? first_key / TILE_ROWS * TILE_ROWS : 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        HeadDropout dropout = HEAD_DROPOUT(sequence, head);
        i64 statistics = ((i64)sequence * heads + head) * padded_queries;
        for (int first_query = seen_from; first_query < queries; first_query += TILE_ROWS) {
            i64 row = (i64)sequence * queries + first_query;
            int valid_rows = queries - first_query, query = first_query + lane;
            __syncthreads();
            load_rows(shared.first_tile, TILE_PITCH, TILE_ROWS, q + row * q_stride + head * HEAD_DIM, q_stride,
                      valid_rows);
            load_rows(shared.second_tile, TILE_PITCH, TILE_ROWS, dy + row * dy_stride + head * HEAD_DIM,
                      dy_stride, valid_rows);
            __syncthreads();
            float p[ROWS], ds[ROWS];
            multiply_rows(p, shared.first_tile, k_rows, lane);
            multiply_rows(ds, shared.second_tile, v_rows, lane);
            bool in_tile = lane < TILE_ROWS && query < queries;
            float row_lse = in_tile ? lse[statistics + query] : 0;
            float row_delta = in_tile ? delta[statistics + query] : 0;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                bool visible = in_tile && (!CAUSAL || warp_key + r <= query);
                Pair pair = {query, warp_key + r, row_lse, row_delta, visible};
                grads(p[r], ds[r], p[r], ds[r], pair, scale * LOG2E, dropout);
            }
            store_weights(p_weights, p, lane);
            store_weights(ds_weights, ds, lane);
            __syncthreads();
            add_rows(dv_sums, p_weights, shared.second_tile, lane);
            add_rows(dk_sums, ds_weights, shared.first_tile, lane);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (warp_key + r >= keys) continue;
        i64 start = (key_row + warp_key + r) * dkv_stride + kv_head * HEAD_DIM;
        store_sums(dk + start, dk_sums[r], lane, ACCUMULATE, scale);
        store_sums(dv + start, dv_sums[r], lane, ACCUMULATE, 1);
    }
}

// dq: a warp has ROWS queries and loops over the keys.
KERNEL __launch_bounds__(BLOCK_THREADS)
attention_generic_backward_q(const In* q, const In* k, const In* v, const Dy* dy, const float* lse,
                             const float* delta, Out* dq, int queries, int keys, int padded_queries,
                             int heads, int kv_heads, i64 q_stride, i64 kv_stride, i64 dq_stride,
                             float scale, DROPOUT_PARAMETERS) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 query_blocks = (queries + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int first_query = (query_blocks - 1 - blockIdx.x % query_blocks) * BLOCK_ROWS;
    int head = blockIdx.x / query_blocks % heads, sequence = blockIdx.x / query_blocks / heads;
    int warp_query = first_query + warp * ROWS;
    i64 first_row = (i64)sequence * queries, row = first_row + first_query;
    i64 kv_start = (i64)sequence * keys * kv_stride + head / (heads / kv_heads) * HEAD_DIM;
    i64 dy_stride = (i64)heads * HEAD_DIM;
    HeadDropout dropout = HEAD_DROPOUT(sequence, head);
    Shared shared = shared_memory();
    load_rows(shared.first_rows, PADDED_DIM, BLOCK_ROWS, q + row * q_stride + head * HEAD_DIM, q_stride,
              queries - first_query);
    load_rows(shared.second_rows, PADDED_DIM, BLOCK_ROWS, dy + row * dy_stride + head * HEAD_DIM, dy_stride,
              queries - first_query);
    const float* q_rows = shared.first_rows + warp * ROWS * PADDED_DIM;
    const float* dy_rows = shared.second_rows + warp * ROWS * PADDED_DIM;
    float4* weights = shared.first_weights + warp * TILE_ROWS;
    i64 statistics = ((i64)sequence * heads + head) * padded_queries + warp_query;
    float row_lse[ROWS], row_delta[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) row_lse[r] = lse[statistics + r], row_delta[r] = delta[statistics + r];
    RowSums dq_sums;
    set_zero(dq_sums);

    int visible_keys = CAUSAL ? min(keys, first_query + BLOCK_ROWS) : keys;
    for (int first_key = 0; first_key < visible_keys; first_key += TILE_ROWS) {
        i64 start = kv_start + first_key * kv_stride;
        __syncthreads();
        load_rows(shared.first_tile, TILE_PITCH, TILE_ROWS, k + start, kv_stride, keys - first_key);
        load_rows(shared.second_tile, TILE_PITCH, TILE_ROWS, v + start, kv_stride, keys - first_key);
        __syncthreads();
        float p[ROWS], ds[ROWS];
        multiply_rows(p, shared.first_tile, q_rows, lane);
        multiply_rows(ds, shared.second_tile, dy_rows, lane);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int query = warp_query + r, key = first_key + lane;
            bool visible = lane < TILE_ROWS && key < keys && (!CAUSAL || key <= query);
            Pair pair = {query, key, row_lse[r], row_delta[r], visible};
            grads(p[r], ds[r], p[r], ds[r], pair, scale * LOG2E, dropout);
        }
        store_weights(weights, ds, lane);
        __syncthreads();
        add_rows(dq_sums, weights, shared.first_tile, lane);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int query = warp_query + r;
        if (query >= queries) continue;
        store_sums(dq + (first_row + query) * dq_stride + head * HEAD_DIM, dq_sums[r], lane, ACCUMULATE, scale);
    }
}
