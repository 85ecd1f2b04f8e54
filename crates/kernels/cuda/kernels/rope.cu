// Rotary position embedding.

#define THREADS 256

// Cosines of all pairs of a head, then their sines.
extern __shared__ __align__(16) float rotations[];

// Angles grow with the position, so they are reduced to a fraction of a turn in f64. `exponent` is
// -log2(theta) / half: the frequency of pair i is 2^(i * exponent).
DEVICE void compute_rotations(i32 position, u32 half, double exponent, float sign) {
    const double turns_per_radian = 0.15915494309189535;
    for (u32 i = threadIdx.x; i < half; i += THREADS) {
        double turns = position * exp2(i * exponent) * turns_per_radian;
        float sine, cosine;
        sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
        rotations[i] = cosine;
        rotations[half + i] = sign * sine;
    }
    __syncthreads();
}

// Rotates the pairs of the first `heads` heads of all rows at one position of a sequence.
template <int N, class T>
DEVICE void rotate(T* qkv, u32 batch, u32 seq_len, u32 heads, u32 head_dim, u64 row_len) {
    // Neighbouring threads have neighbouring pairs, and the same pairs of all heads.
    u32 half = head_dim / 2, vectors = half / N, width = vectors < THREADS ? vectors : THREADS;
    if (width == 0 || threadIdx.x / width >= THREADS / width) return;
    for (u32 vector = threadIdx.x % width; vector < vectors; vector += width) {
        float cosines[N], sines[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            cosines[i] = rotations[vector * N + i];
            sines[i] = rotations[half + vector * N + i];
        }
        for (u32 sequence = blockIdx.y; sequence < batch; sequence += gridDim.y) {
            T* row = qkv + ((u64)sequence * seq_len + blockIdx.x) * row_len + vector * N;
            for (u32 head = threadIdx.x / width; head < heads; head += THREADS / width) {
                T *first = row + (u64)head * head_dim, *second = first + half;
                float a[N], b[N], rotated[N];
                load((const T*)first, a);
                load((const T*)second, b);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    rotated[i] = a[i] * cosines[i] - b[i] * sines[i];
                    b[i] = b[i] * cosines[i] + a[i] * sines[i];
                }
                store(first, rotated);
                store(second, b);
            }
        }
    }
}

// A block has one position of a sequence, of every gridDim.y-th sequence. `sign` is -1 for the inverse
// rotation.
#define ROPE(T)                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        rope_##T(T* qkv, const i32* positions, u32 batch, u32 seq_len, u32 heads, u32 head_dim,        \
                 u64 row_len, double exponent, float sign, u32 is_vectorised) {                        \
        compute_rotations(positions[blockIdx.x], head_dim / 2, exponent, sign);                        \
        if (is_vectorised)                                                                             \
            rotate<8>(qkv, batch, seq_len, heads, head_dim, row_len);                                  \
        else                                                                                           \
            rotate<1>(qkv, batch, seq_len, heads, head_dim, row_len);                                  \
    }

ROPE(f32)
ROPE(bf16)
