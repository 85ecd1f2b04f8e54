//! Shared-memory messages of a group whose other messages go over the network. The caller polls
//! both and must not sleep long on either.

use std::time::{Duration, Instant};

use super::super::ShmEngine;
use super::super::wait::{IN_GROUP, SLEEP_MAX, SLEEP_MIN};
use super::group::P2pGroup;
use crate::control::CallWatch;
use crate::{Call, Result};

/// How long both are polled before the caller sleeps on the network: the chunks of a message arrive
/// in quick succession.
const POLL_FOR: Duration = Duration::from_micros(200);

/// The shared-memory messages of a group, possibly none.
pub(crate) struct P2pExchange<'e, 'c> {
    engine: &'e mut ShmEngine,
    group: P2pGroup<'c>,
    /// Time of the last progress.
    since: Instant,
    watch: CallWatch,
}

impl ShmEngine {
    /// Posts messages that [`P2pExchange::progress`] completes.
    pub(crate) fn exchange<'c>(
        &mut self,
        calls: Vec<Call<'c>>,
        now: Instant,
    ) -> Result<P2pExchange<'_, 'c>> {
        let group = self.post_group(calls)?;
        let watch = self.shared.watch(now);
        Ok(P2pExchange { engine: self, group, since: now, watch })
    }
}

impl P2pExchange<'_, '_> {
    /// Makes progress and returns how long the exchange may be left unattended. Unexpected messages
    /// are queued, so that their senders continue.
    pub fn progress(&mut self, now: Instant) -> Result<Duration> {
        if self.engine.progress(&mut self.group)? {
            self.engine.shared.region.withdraw_wait();
            self.since = now;
            self.watch.reset(0, now);
            return Ok(Duration::ZERO);
        }
        let waited = now.saturating_duration_since(self.since);
        let (ranks, first) = self.group.awaited();
        let shared = &self.engine.shared;
        let Some(mut first) = first else {
            return Ok(waited.clamp(SLEEP_MIN, SLEEP_MAX));
        };
        if waited < POLL_FOR {
            std::thread::yield_now();
            return Ok(Duration::ZERO);
        }
        first.signature.shape = IN_GROUP;
        let ready = || self.engine.has_chunks();
        match shared.check(&mut self.watch, &ranks, &first, &ready) {
            // Messages that arrived before the failure are still delivered.
            Err(_) if self.engine.progress(&mut self.group)? => Ok(Duration::ZERO),
            Err(error) => Err(error),
            Ok(()) => Ok(waited.min(SLEEP_MIN)),
        }
    }

    /// Waits for the remaining messages, once the network has none.
    pub fn wait(mut self) -> Result {
        self.engine.wait_group(&mut self.group)
    }
}

impl Drop for P2pExchange<'_, '_> {
    fn drop(&mut self) {
        self.engine.shared.region.withdraw_wait();
    }
}
