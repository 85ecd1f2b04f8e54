//! A call of the provider that does not return, because a peer was killed with a lock: the lock is released in its
//! place. The calling thread is NCCL's, so that nothing else could end the call.

use std::sync::{TryLockError, Weak};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::liveness::has_ended;
use crate::shm_lock::SegmentLock;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time without progress after which the locks of peers that have ended are released.
const RELEASE_PEERS: Duration = Duration::from_millis(500);
/// And the lock of this endpoint: later, for it may be held by the call that waits for a peer's.
const RELEASE_OWN: Duration = Duration::from_secs(1);

/// What is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    Nothing,
    /// Locks of peers that have ended.
    Peers,
    /// The lock of this endpoint as well, if a peer has ended.
    Own,
}

/// How long the endpoint has been in use without progress.
#[derive(Debug, Default)]
struct Detector {
    progress: u64,
    since: Option<Instant>,
}

impl Detector {
    /// What to do, with the number of completed calls and whether one is in progress.
    fn check(&mut self, is_busy: bool, progress: u64, now: Instant) -> Release {
        if !is_busy || progress != self.progress {
            *self = Self { progress, since: is_busy.then_some(now) };
            return Release::Nothing;
        }
        let stuck = now.saturating_duration_since(*self.since.get_or_insert(now));
        match stuck {
            _ if stuck >= RELEASE_OWN => Release::Own,
            _ if stuck >= RELEASE_PEERS => Release::Peers,
            _ => Release::Nothing,
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
        let release = detector.check(is_busy, self.progress_count(), Instant::now());
        if release == Release::Nothing {
            return;
        }
        let state = self.state();
        let peers = state.connections.values().filter_map(|connection| connection.peer.as_ref());
        let mut has_lost_peer = false;
        for peer in peers.filter(|peer| !matches!(has_ended(&peer.stream), Ok(false))) {
            has_lost_peer = true;
            if let Some(lock) = peer.segment_lock.as_ref().filter(|lock| lock.is_held()) {
                lock.release();
            }
        }
        if has_lost_peer && release == Release::Own && own.is_held() {
            own.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_released_only_without_progress() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut detector = Detector::default();
        assert_eq!(detector.check(true, 7, at(0.0)), Release::Nothing);
        assert_eq!(detector.check(true, 7, at(0.4)), Release::Nothing);
        assert_eq!(detector.check(true, 8, at(0.6)), Release::Nothing, "a call has completed");
        assert_eq!(detector.check(true, 8, at(1.0)), Release::Nothing);
        assert_eq!(detector.check(false, 8, at(1.05)), Release::Nothing, "not in use");
        assert_eq!(detector.check(true, 8, at(1.1)), Release::Nothing);
        assert_eq!(detector.check(true, 8, at(1.6)), Release::Peers);
        assert_eq!(detector.check(true, 8, at(2.1)), Release::Own);
    }
}
