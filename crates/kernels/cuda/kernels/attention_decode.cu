// Attention of one query to a KV cache.
//
// Keys are split over blocks; a block has one head and one split, its warps every WARPS-th key. The partial
// results of the splits are merged by a second kernel.
//
// HEAD_DIM; WARP_THREADS: the warp size that the block assumes; IN_BF16 of q, keys and values; OUT_BF16 of y.

static_assert(WARP == WARP_THREADS, "the block assumes another warp size");

#define WARPS 8
#define LANE_DIMS ((HEAD_DIM + WARP - 1) / WARP)
// Keys that a warp loads at once.
#define UNROLL 4
// Elements of a partial result: the output, the maximum and the sum.
#define PARTIAL (HEAD_DIM + 2)

typedef ElementType<IN_BF16>::type In;
typedef ElementType<OUT_BF16>::type Out;

// Online softmax over some keys; a lane has every WARP-th dimension of the output.
struct State {
    float max, sum, o[LANE_DIMS];
};

DEVICE void add_key(State& state, float score, const float (&value)[LANE_DIMS]) {
    float max = fmaxf(state.max, score);
    // Both are 0 while no key was added, whose scores are -inf.
    float correction = state.max == max ? 1 : expf(state.max - max);
    float p = score == NEG_INFINITY ? 0 : expf(score - max);
    state.max = max;
    state.sum = state.sum * correction + p;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) state.o[i] = state.o[i] * correction + p * value[i];
}

template <class T> DEVICE void load_dims(float (&to)[LANE_DIMS], const T* from, int lane, bool valid) {
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int d = lane + i * WARP;
        to[i] = valid && d < HEAD_DIM ? to_float(from[d]) : 0;
    }
}

// Merges the states of the warps of a block; the first warp has the result.
DEVICE void merge_warps(State& state, int lane, int warp) {
    __shared__ float partials[WARPS][PARTIAL];
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int d = lane + i * WARP;
        if (d < HEAD_DIM) partials[warp][d] = state.o[i];
    }
    if (lane == 0) partials[warp][HEAD_DIM] = state.max, partials[warp][HEAD_DIM + 1] = state.sum;
    __syncthreads();
    if (warp != 0) return;
    float max = state.max, sum = 0;
    for (int w = 1; w < WARPS; w++) max = fmaxf(max, partials[w][HEAD_DIM]);
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) state.o[i] = 0;
    for (int w = 0; w < WARPS; w++) {
        // Warps without keys have no weight.
        float factor = partials[w][HEAD_DIM] == NEG_INFINITY ? 0 : expf(partials[w][HEAD_DIM] - max);
        sum += partials[w][HEAD_DIM + 1] * factor;
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            int d = lane + i * WARP;
            if (d < HEAD_DIM) state.o[i] += partials[w][d] * factor;
        }
    }
    state.max = max;
    state.sum = sum;
}

// Writes y if there is one split, else a partial result.
KERNEL __launch_bounds__(WARPS * WARP)
attention_decode(const In* q, const In* keys, const In* values, Out* y, float* partials, int tokens,
                 int keys_per_split, int kv_heads, float scale) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int head = blockIdx.x, heads = gridDim.x, split = blockIdx.y, splits = gridDim.y;
    i64 stride = (i64)kv_heads * HEAD_DIM, start = head / (heads / kv_heads) * HEAD_DIM;
    float q_dims[LANE_DIMS];
    load_dims(q_dims, q + head * HEAD_DIM, lane, true);
    State state = {NEG_INFINITY, 0, {}};
    int end = min(tokens, (split + 1) * keys_per_split);
    for (int first = split * keys_per_split + warp * UNROLL; first < end; first += WARPS * UNROLL) {
        float k[UNROLL][LANE_DIMS], v[UNROLL][LANE_DIMS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            load_dims(k[u], keys + (first + u) * stride + start, lane, first + u < end);
            load_dims(v[u], values + (first + u) * stride + start, lane, first + u < end);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float score = 0;
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) score = fmaf(q_dims[i], k[u][i], score);
            score = warp_sum(score) * scale;
            add_key(state, first + u < end ? score : NEG_INFINITY, v[u]);
        }
    }
    merge_warps(state, lane, warp);
    if (warp != 0) return;
    float* partial = partials + ((i64)head * splits + split) * PARTIAL;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        int d = lane + i * WARP;
        if (d >= HEAD_DIM) continue;
        if (splits == 1) {
            from_float(state.o[i] / state.sum, y + head * HEAD_DIM + d);
        } else {
            partial[d] = state.o[i];
        }
    }
    if (splits > 1 && lane == 0) partial[HEAD_DIM] = state.max, partial[HEAD_DIM + 1] = state.sum;
}

// Merges the partial results of the splits; a block has one head.
KERNEL attention_decode_merge(const float* partials, Out* y, int splits) {
    partials += (i64)blockIdx.x * splits * PARTIAL;
    float max = NEG_INFINITY, sum = 0;
    for (int s = 0; s < splits; s++) max = fmaxf(max, partials[s * PARTIAL + HEAD_DIM]);
    for (int s = 0; s < splits; s++) {
        sum += partials[s * PARTIAL + HEAD_DIM + 1] * expf(partials[s * PARTIAL + HEAD_DIM] - max);
    }
    for (int d = threadIdx.x; d < HEAD_DIM; d += blockDim.x) {
        float o = 0;
        for (int s = 0; s < splits; s++) {
            o += partials[s * PARTIAL + d] * expf(partials[s * PARTIAL + HEAD_DIM] - max);
        }
        from_float(o / sum, y + blockIdx.x * HEAD_DIM + d);
    }
}
