//! A limit on the ranks that run at a time, over all tests of this process: ranks that share a GPU
//! also share its memory, and a case that fills the memory must run alone.

use std::sync::{Condvar, Mutex, PoisonError};

static USED: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// Ranks that this process may run, freed on drop.
pub struct RankSlots(usize);

impl RankSlots {
    /// Waits until `ranks` more ranks may run; more than the limit count as the limit.
    pub fn acquire(ranks: usize, limit: usize) -> Self {
        let ranks = ranks.min(limit);
        let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |used: &mut usize| *used + ranks > limit;
        let mut used = FREED.wait_while(used, is_full).unwrap_or_else(PoisonError::into_inner);
        *used += ranks;
        Self(ranks)
    }
}

impl Drop for RankSlots {
    fn drop(&mut self) {
        *USED.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        FREED.notify_all();
    }
}
