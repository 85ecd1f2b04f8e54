// Statistics of queries for attention's backward pass. Per head and query: the log-sum-exp times log2(e), and
// delta, the row sum of dy * y. Each head is padded to `padded_queries` with inf and 0, so that the
// probabilities of padded queries are 0.
//
// HEAD_DIM, Y_BF16, DY_BF16; VECTOR: elements of a load; BY_ROW: lse is indexed by row and head, otherwise
// by sequence, head and token.

typedef ElementType<Y_BF16>::type Y;
typedef ElementType<DY_BF16>::type DY;

DEVICE constexpr int lanes_of(int vectors) {
    int lanes = 1;
    while (lanes < vectors && lanes < 32) lanes *= 2;
    return lanes;
}

// Lanes that share a query, at most those of the smallest warps.
#define LANES lanes_of((HEAD_DIM + VECTOR - 1) / VECTOR)

KERNEL attention_prepare_backward(const Y* y, const DY* dy, const float* lse, float* scaled_lse, float* delta,
                                  u64 count, int queries, int padded_queries, int heads) {
    u64 at = global_thread() / LANES;
    int lane = threadIdx.x % LANES;
    u64 head_of_all = at / padded_queries;
    int query = at % padded_queries;
    u64 row = head_of_all / heads * queries + query;
    u64 row_head = row * heads + head_of_all % heads;
    bool valid = at < count && query < queries;
    float sum = 0;
    if (valid) {
        for (int d = lane * VECTOR; d < HEAD_DIM; d += LANES * VECTOR) {
            float a[VECTOR], b[VECTOR];
            load(y + row_head * HEAD_DIM + d, a);
            load(dy + row_head * HEAD_DIM + d, b);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum += a[i] * b[i];
        }
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
    if (at >= count || lane != 0) return;
    delta[at] = sum;
    scaled_lse[at] = valid ? lse[BY_ROW ? row_head : head_of_all * queries + query] * LOG2E : -NEG_INFINITY;
}
