// Bias and bias gradient of linear layers.

// A block is LANES threads wide, each with N columns, and GROUPS rows high.
#define LANES 32
#define GROUPS 8

// Adds the bias to every row of y.
template <int N, class T, class B>
DEVICE void add_bias(T* y, const B* bias, u64 rows, u64 columns) {
    u64 column = ((u64)blockIdx.x * LANES + threadIdx.x % LANES) * N;
    if (column >= columns) return;
    float b[N], v[N];
    load<N>(bias + column, b);
    u64 first = (u64)blockIdx.y * GROUPS + threadIdx.x / LANES, step = (u64)gridDim.y * GROUPS;
    for (u64 row = first; row < rows; row += step) {
        T* at = y + row * columns + column;
        load<N>(at, v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += b[i];
        store(at, v);
    }
}

// Column sums of `block_rows` rows of x. Writes one row of sums per blockIdx.y.
template <int N, class T>
DEVICE void column_sums(const T* x, u64 rows, u64 columns, u64 block_rows, float* partials) {
    // Loads of a thread that are in flight together.
    const int UNROLL = 4;
    __shared__ float shared[GROUPS][LANES * N];
    u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    u64 block_column = (u64)blockIdx.x * LANES * N, column = block_column + lane * N;
    u64 row = blockIdx.y * block_rows, end = row + block_rows < rows ? row + block_rows : rows;
    float sums[N] = {}, v[N];
    if (column < columns) {
        const T* at = x + column;
        for (row += group; row + (UNROLL - 1) * GROUPS < end; row += UNROLL * GROUPS) {
            Packed<T, N> loaded[UNROLL];
#pragma unroll
            for (int j = 0; j < UNROLL; j++) loaded[j] = load_packed<N>(at + (row + j * GROUPS) * columns);
#pragma unroll
            for (int j = 0; j < UNROLL; j++) {
                unpack(loaded[j], v);
#pragma unroll
                for (int i = 0; i < N; i++) sums[i] += v[i];
            }
        }
        for (; row < end; row += GROUPS) {
            load<N>(at + row * columns, v);
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += v[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) shared[group][lane * N + i] = sums[i];
    __syncthreads();
    // LANES * GROUPS threads are at least as many as the block's columns.
    u32 own = threadIdx.x;
    if (own < LANES * N && block_column + own < columns) {
        float sum = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) sum += shared[g][own];
        partials[blockIdx.y * columns + block_column + own] = sum;
    }
}

#define ADD_BIAS(T, B, N)                                                                          \
    KERNEL __launch_bounds__(LANES * GROUPS)                                                       \
        add_bias_##T##_##B##_##N(T* y, const B* bias, u64 rows, u64 columns) {                     \
        add_bias<N>(y, bias, rows, columns);                                                       \
    }

#define COLUMN_SUMS(T, N)                                                                          \
    KERNEL __launch_bounds__(LANES * GROUPS)                                                       \
        column_sums_##T##_##N(const T* x, u64 rows, u64 columns, u64 block_rows, float* partials) { \
        column_sums<N>(x, rows, columns, block_rows, partials);                                    \
    }

ADD_BIAS(f32, f32, 1)
ADD_BIAS(f32, f32, 4)
ADD_BIAS(f32, bf16, 1)
ADD_BIAS(f32, bf16, 4)
ADD_BIAS(bf16, f32, 1)
ADD_BIAS(bf16, f32, 8)
ADD_BIAS(bf16, bf16, 1)
ADD_BIAS(bf16, bf16, 8)

COLUMN_SUMS(f32, 1)
COLUMN_SUMS(f32, 4)
COLUMN_SUMS(bf16, 1)
COLUMN_SUMS(bf16, 8)

#define PARTIAL_GROUPS 32

// Adds the column sums of `count` rows of partial sums to `sums`, in an order that depends on the count alone.
KERNEL __launch_bounds__(LANES * PARTIAL_GROUPS)
    add_partial_sums(const float* partials, u64 count, u64 columns, float* sums) {
    __shared__ float shared[PARTIAL_GROUPS][LANES + 1];
    u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    u64 column = (u64)blockIdx.x * LANES + lane;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (u64 row = group; row < count; row += PARTIAL_GROUPS) sum += partials[row * columns + column];
    }
    shared[group][lane] = sum;
    __syncthreads();
    if (group == 0 && column < columns) {
        sum = 0;
#pragma unroll
        for (int g = 0; g < PARTIAL_GROUPS; g++) sum += shared[g][lane];
        sums[column] += sum;
    }
}
