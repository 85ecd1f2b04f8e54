// Instructions of tensor-core attention: mma.sync, ldmatrix and cp.async, from sm_80 on.

// The address of shared memory as the instructions below take it.
DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Starts a copy of 16 bytes to shared memory. Writes zeros if not `valid`.
DEVICE void cp_async_16(u32 to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

// Ends a group of copies.
DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all of this thread's groups.
DEVICE void cp_async_wait_all() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Loads four 8 x 8 matrices. Lane 8 i + r has the address of row r of matrix i. Lane l receives
// elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
DEVICE void ldmatrix_x4(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// As above, with each matrix transposed.
DEVICE void ldmatrix_x4_transposed(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// c += a b, for a 16 x 16 tile of bf16 and a 16 x 8 tile of bf16. With r = lane / 4 and s = 2 (lane % 4),
// a lane has a[r][s..], a[r + 8][s..], a[r][s + 8..], a[r + 8][s + 8..], each two elements of a row;
// b[s..][r], b[s + 8..][r], each two elements of a column; c[r][s..], c[r + 8][s..].
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
