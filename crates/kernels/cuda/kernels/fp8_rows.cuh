// Rows in fp8 with a scale per row, which threads hold in registers. Follows rows.cuh and e4m3.cuh.

struct Fp8Rows {
    u8* values;
    float* scales;
};

// Writes a row of values that were rounded to T. All threads of a row call it; `is_row` is false past the end.
template <class T>
DEVICE void store_fp8_row(float (&row)[PER_THREAD][8], Fp8Rows to, u64 index, bool is_row,
                          float (*shared)[ROW_WARPS]) {
    float max = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            row[i][j] = rounded<T>(row[i][j]);
            max = fmaxf(max, fabsf(row[i][j]));
        }
    float scale = fp8_scale(row_max(max, shared)), inverse = 1.0f / scale;
    if (!is_row) return;
    if (row_thread() == 0) to.scales[index] = scale;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (!has_vector(i)) continue;
        float q[8];
#pragma unroll
        for (int j = 0; j < 8; j++) q[j] = row[i][j] * inverse;
        store_vector(to.values + index * COLUMNS + vector_column(i),
                     make_uint2(e4m3_quad(q[0], q[1], q[2], q[3]), e4m3_quad(q[4], q[5], q[6], q[7])));
    }
}
