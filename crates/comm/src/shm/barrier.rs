//! A memory barrier on all CPUs at once, for the one who goes to sleep, which is rare, so that those
//! who post, which is often, need none.

use std::sync::OnceLock;

const QUERY: i32 = 0;
const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> i64 {
    // SAFETY: it takes numbers only, and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Whether the system has it. From then on, barriers of other processes reach this one.
pub fn can() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let both = i64::from(GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED);
        let has = membarrier(QUERY);
        has > 0 && has & both == both && membarrier(REGISTER_GLOBAL_EXPEDITED) == 0
    })
}

/// After this, all CPUs that run one of the ranks see what was written before it, and what they wrote
/// before it is seen here.
pub fn everywhere() {
    membarrier(GLOBAL_EXPEDITED);
}
