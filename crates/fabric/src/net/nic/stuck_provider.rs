//! A call of the provider that does not return, because a peer was killed with a lock: the lock is released in its
//! place. The calling thread is NCCL's, so that nothing else could end the call.

use std::sync::{Arc, TryLockError, Weak};
use std::time::Duration;

use super::engine::Engine;
use crate::shm_lock::SegmentLock;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Checks without progress after which the locks of peers that have exited are released. Time would count while this
/// process is stopped.
const RELEASE_PEERS: u32 = 5;
/// And the lock of this endpoint: later, for it may be held by the call that waits for a peer's.
const RELEASE_OWN: u32 = 10;
/// A lock is released if it is held at all of these times: other processes hold it for microseconds.
const SAMPLES: u32 = 20;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);

/// What is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    Nothing,
    /// Locks of peers that have exited.
    Peers,
    /// The lock of this endpoint as well, if a peer has exited.
    Own,
}

/// How long the endpoint has been in use without progress.
#[derive(Debug, Default)]
struct Detector {
    progress: u64,
    stuck_checks: u32,
}

impl Detector {
    /// What to do, with the number of completed calls and whether one is in progress.
    fn check(&mut self, is_busy: bool, progress: u64) -> Release {
        if !is_busy || progress != self.progress {
            *self = Self { progress, stuck_checks: 0 };
            return Release::Nothing;
        }
        self.stuck_checks += 1;
        match self.stuck_checks {
            0..RELEASE_PEERS => Release::Nothing,
            RELEASE_PEERS..RELEASE_OWN => Release::Peers,
            RELEASE_OWN.. => Release::Own,
        }
    }
}

/// Starts the thread that watches an endpoint until it is closed.
pub fn watch(engine: Weak<Engine>, own: SegmentLock) -> std::io::Result<()> {
    super::spawn(move || {
        let mut detector = Detector::default();
        loop {
            std::thread::sleep(INTERVAL);
            let Some(engine) = engine.upgrade() else { return };
            engine.release_locks(&mut detector, &own);
        }
    })
}

impl Engine {
    fn release_locks(&self, detector: &mut Detector, own: &SegmentLock) {
        let is_busy = matches!(self.io.try_lock(), Err(TryLockError::WouldBlock));
        let release = detector.check(is_busy, self.progress_count());
        if release == Release::Nothing {
            return;
        }
        let mut has_lost_peer = false;
        let mut locks: Vec<Arc<SegmentLock>> = Vec::new();
        for connection in self.state().connections.values() {
            if let Some(peer) = connection.peer.as_ref().filter(|peer| peer.has_exited()) {
                has_lost_peer = true;
                locks.extend(peer.segment_lock.clone());
            }
        }
        locks.iter().for_each(|lock| release_if_held(lock));
        if has_lost_peer && release == Release::Own {
            release_if_held(own);
        }
    }
}

/// Releases a lock that is held all the time.
fn release_if_held(lock: &SegmentLock) {
    let is_held = |_| {
        std::thread::sleep(SAMPLE_INTERVAL);
        lock.is_held()
    };
    if lock.is_held() && (0..SAMPLES).all(is_held) {
        lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_released_only_without_progress() {
        let mut detector = Detector::default();
        let mut check = |is_busy, progress, times| {
            (0..times).map(|_| detector.check(is_busy, progress)).last().unwrap()
        };
        assert_eq!(check(true, 7, RELEASE_PEERS), Release::Nothing);
        assert_eq!(check(true, 8, 1), Release::Nothing, "a call has completed");
        assert_eq!(check(true, 8, RELEASE_PEERS - 1), Release::Nothing);
        assert_eq!(check(false, 8, 1), Release::Nothing, "not in use");
        assert_eq!(check(true, 8, RELEASE_PEERS), Release::Peers);
        assert_eq!(check(true, 8, RELEASE_OWN - RELEASE_PEERS), Release::Own);
        assert_eq!(check(true, 9, 1), Release::Nothing);
    }
}
