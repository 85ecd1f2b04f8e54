// Token and position embeddings.
//
// Every elementwise kernel takes `len` elements, of which the first `vectorised` are processed 8 at a time.
// Vectors must not cross rows: `vectorised` is all elements or none.

#define THREADS 256

// The row of a token in the local part of a table, or `table_rows` if it is not there.
DEVICE u64 local_row(i32 token, u64 first, u64 table_rows) {
    u64 row = (u64)(i64)token - first;
    return token >= 0 && row < table_rows ? row : table_rows;
}

// y = table[token], or zeros for tokens that are not in the local part of the table.
template <class T, class Y>
DEVICE void embedding(const i32* tokens, u64 first, const T* table, u64 table_rows, Y* y, u32 dim, u64 len,
                      u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N] = {};
        u64 row = divide(at, dim);
        u64 table_row = local_row(tokens[row], first, table_rows);
        if (table_row < table_rows) load(table + table_row * dim + (at - row * dim), values);
        store(y + at, values);
    })
}

// y += table[position]; the positions repeat for every sequence.
template <class T, class Y>
DEVICE void add_position_embedding(const i32* positions, u32 position_count, const T* table, Y* y, u32 dim,
                                   u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        float added[N];
        u64 row = divide(at, dim);
        u64 table_row = positions[row - divide(row, position_count) * position_count];
        load(table + table_row * dim + (at - row * dim), added);
        load(y + at, values);
        for (int i = 0; i < N; i++) values[i] += added[i];
        store(y + at, values);
    })
}

#define LOOKUP(T, Y)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        embedding_##T##_##Y(const i32* tokens, u64 first, const T* table, u64 table_rows, Y* y,        \
                            u32 dim, u64 len, u64 vectorised) {                                        \
        embedding(tokens, first, table, table_rows, y, dim, len, vectorised);                          \
    }                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        add_position_embedding_##T##_##Y(const i32* positions, u32 position_count, const T* table,     \
                                         Y* y, u32 dim, u64 len, u64 vectorised) {                     \
        add_position_embedding(positions, position_count, table, y, dim, len, vectorised);             \
    }

LOOKUP(f32, f32)
LOOKUP(f32, bf16)
LOOKUP(bf16, f32)
LOOKUP(bf16, bf16)

DEVICE void add_atomically(float* to, const float (&values)[1]) { atomicAdd(to, values[0]); }

DEVICE void add_atomically(float* to, const float (&values)[8]) {
#if !ON_HIP && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]),
                 "f"(values[2]), "f"(values[3])
                 : "memory");
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + 4), "f"(values[4]),
                 "f"(values[5]), "f"(values[6]), "f"(values[7])
                 : "memory");
#else
    for (int i = 0; i < 8; i++) atomicAdd(to + i, values[i]);
#endif
}

// Adds rows of dy to their rows of dtable, in any order.
template <class D>
DEVICE void embedding_backward_atomic(const i32* tokens, u64 first, const D* dy, float* dtable,
                                      u64 table_rows, u32 dim, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        u64 row = divide(at, dim);
        u64 table_row = local_row(tokens[row], first, table_rows);
        if (table_row < table_rows) {
            float values[N];
            load(dy + at, values);
            add_atomically(dtable + table_row * dim + (at - row * dim), values);
        }
    })
}

// ---- In a fixed order: a counting sort of the rows by token, then the sum of the rows of each token ----

#define SORT_THREADS 256
// Table rows that a block of the sort has.
#define SORT_ROWS 256

// Sorts the indices of tokens by table row, in ascending order within a row. The tokens of table row r are
// order[starts[r]..starts[r + 1]]. Each block looks at all tokens, but places those of its table rows only.
KERNEL __launch_bounds__(SORT_THREADS)
    sort_by_table_row(const i32* tokens, u64 count, u64 first, u64 table_rows, u32* order, u32* starts) {
    __shared__ u32 next[SORT_ROWS];
    __shared__ u32 shared[SORT_THREADS / WARP];
    __shared__ u32 rows[SORT_THREADS];
    u64 block_first = (u64)blockIdx.x * SORT_ROWS;
    next[threadIdx.x] = 0;
    __syncthreads();
    // Tokens of each of the block's table rows, and of all table rows before them.
    u32 before = 0;
    for (u64 i = threadIdx.x; i < count; i += SORT_THREADS) {
        u64 row = local_row(tokens[i], first, table_rows);
        before += row < block_first;
        if (row >= block_first && row < block_first + SORT_ROWS && row < table_rows)
            atomicAdd(&next[row - block_first], 1);
    }
    before = block_sum(before, shared);
    if (threadIdx.x == 0) {
        for (u32 row = 0; row < SORT_ROWS; row++) {
            u32 tokens_of_row = next[row];
            next[row] = before;
            before += tokens_of_row;
        }
    }
    __syncthreads();
    if (block_first + threadIdx.x < table_rows) starts[block_first + threadIdx.x] = next[threadIdx.x];
    if (block_first + SORT_ROWS >= table_rows && threadIdx.x == 0) starts[table_rows] = before;
    for (u64 chunk = 0; chunk < count; chunk += SORT_THREADS) {
        u64 i = chunk + threadIdx.x;
        u64 row = i < count ? local_row(tokens[i], first, table_rows) : table_rows;
        bool is_match = row >= block_first && row < block_first + SORT_ROWS && row < table_rows;
        if (!__syncthreads_or(is_match)) continue;
        rows[threadIdx.x] = is_match ? (u32)(row - block_first) : SORT_ROWS;
        __syncthreads();
        // The place after those of earlier tokens of the same row.
        u32 place = 0;
        if (is_match) {
            place = next[row - block_first];
            for (u32 other = 0; other < threadIdx.x; other++) place += rows[other] == rows[threadIdx.x];
        }
        __syncthreads();
        if (is_match) {
            order[place] = (u32)i;
            atomicAdd(&next[row - block_first], 1);
        }
    }
}

template <int N, class D> DEVICE void add_to(float (&sums)[N], const D* from) {
    float values[N];
    load(from, values);
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] += values[i];
}

// Adds rows of dy to table row blockIdx.x of dtable, in the sorted order. Index i of the order is row i of
// each of `batch` sequences of `count` rows.
template <int N, class D>
DEVICE void add_sorted_rows(const u32* order, const u32* starts, const D* dy, float* dtable, u64 count,
                            u64 batch, u64 dim) {
    u64 table_row = blockIdx.x, column = ((u64)blockIdx.y * blockDim.x + threadIdx.x) * N;
    u32 start = starts[table_row], end = starts[table_row + 1];
    if (start == end || column >= dim) return;
    float sums[N] = {}, values[N];
    dy += column;
    if (batch == 1) {
#pragma unroll 8
        for (u32 i = start; i < end; i++) add_to<N>(sums, dy + order[i] * dim);
    } else {
        for (u32 i = start; i < end; i++) {
#pragma unroll 8
            for (u64 sequence = 0; sequence < batch; sequence++)
                add_to<N>(sums, dy + (sequence * count + order[i]) * dim);
        }
    }
    float* to = dtable + table_row * dim + column;
    load((const float*)to, values);
#pragma unroll
    for (int j = 0; j < N; j++) values[j] += sums[j];
    store(to, values);
}

#define EMBEDDING_BACKWARD(D)                                                                          \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        embedding_backward_atomic_##D(const i32* tokens, u64 first, const D* dy, float* dtable,        \
                                      u64 table_rows, u32 dim, u64 len, u64 vectorised) {              \
        embedding_backward_atomic(tokens, first, dy, dtable, table_rows, dim, len, vectorised);        \
    }                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        add_sorted_rows_##D(const u32* order, const u32* starts, const D* dy, float* dtable,           \
                            u64 count, u64 batch, u64 dim, u32 is_vectorised) {                        \
        if (is_vectorised)                                                                             \
            add_sorted_rows<8>(order, starts, dy, dtable, count, batch, dim);                          \
        else                                                                                           \
            add_sorted_rows<1>(order, starts, dy, dtable, count, batch, dim);                          \
    }

EMBEDDING_BACKWARD(f32)
EMBEDDING_BACKWARD(bf16)
