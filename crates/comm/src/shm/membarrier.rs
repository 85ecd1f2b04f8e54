//! Asymmetric fence: the rare sleeping side issues a memory barrier on all CPUs, so that the
//! frequent posting side needs none.

use std::sync::OnceLock;

const QUERY: i32 = 0;
const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> i64 {
    // SAFETY: the call takes integers only and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Whether the kernel supports it. Registers this process for the barriers of others.
pub fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let both = i64::from(GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED);
        let has = membarrier(QUERY);
        has > 0 && has & both == both && membarrier(REGISTER_GLOBAL_EXPEDITED) == 0
    })
}

/// A full barrier on all CPUs that run registered processes.
pub fn membarrier_global() {
    membarrier(GLOBAL_EXPEDITED);
}
