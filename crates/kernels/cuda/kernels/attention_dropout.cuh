// Dropout of attention probabilities. Without DROPOUT nothing is dropped, and the scale is 1.

// Arguments of kernels.
#define DROPOUT_PARAMETERS                                                                      \
    const u64 *mask_state, u64 mask_key, u64 mask_offset, u64 sequence_stride, u64 head_stride, \
        u64 query_stride, u32 mask_threshold, float dropout_scale

// The dropout of a head of a sequence.
#define HEAD_DROPOUT(sequence, head)                                                            \
    HeadDropout {                                                                               \
        state_key(mask_state, mask_key),                                                        \
            state_offset(mask_state, mask_offset) + (u64)(sequence) * sequence_stride +         \
                (u64)(head) * head_stride,                                                      \
            query_stride, mask_threshold, dropout_scale                                         \
    }

struct HeadDropout {
    u64 mask_key;
    // Index of the probability of query 0 and key 0.
    u64 first_index;
    u64 query_stride;
    // The dropout probability times 2^32, rounded up to a multiple of 2^8.
    u32 threshold;
    float scale;

    DEVICE bool drops(int query, int key) const {
        u64 index = first_index + (u64)query * query_stride + (u64)key;
        return DROPOUT && random_u32(mask_key, index) < threshold;
    }
};

// The gradient of a score, without the scale. The probability is negative if it is dropped.
DEVICE float score_grad(float p, float dp, float delta, const HeadDropout& dropout) {
    if (!DROPOUT) return p * (dp - delta);
    return fabsf(p) * ((p < 0 ? 0 : dp * dropout.scale) - delta);
}
