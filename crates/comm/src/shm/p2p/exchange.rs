//! Shared-memory messages of a group whose other messages go over the network. The caller polls
//! both and must not sleep long on either.

use std::time::{Duration, Instant};

use super::super::ShmEngine;
use super::super::region::Activity;
use super::super::signature_codec;
use super::super::wait::{IN_GROUP, SLEEP_MAX, SLEEP_MIN};
use super::group::P2pGroup;
use crate::{Call, Result, Signature};

/// How long both are polled before the caller sleeps on the network: the chunks of a message arrive
/// in quick succession.
const POLL_FOR: Duration = Duration::from_micros(200);

/// The shared-memory messages of a group, possibly none.
pub(crate) struct P2pExchange<'e, 'c> {
    engine: &'e mut ShmEngine,
    group: P2pGroup<'c>,
    /// Time of the last progress.
    since: Instant,
}

impl ShmEngine {
    /// Posts messages that [`P2pExchange::progress`] completes.
    pub(crate) fn exchange<'c>(
        &mut self,
        calls: Vec<Call<'c>>,
        now: Instant,
    ) -> Result<P2pExchange<'_, 'c>> {
        let group = self.post_group(calls)?;
        Ok(P2pExchange { engine: self, group, since: now })
    }
}

impl P2pExchange<'_, '_> {
    /// Makes progress and returns how long the exchange may be left unattended. Unexpected messages
    /// are queued, so that their senders continue.
    pub fn progress(&mut self, now: Instant) -> Result<Duration> {
        if self.engine.progress(&mut self.group)? {
            self.since = now;
            self.engine.shared.wait_record.publish(&[], Duration::ZERO);
            return Ok(Duration::ZERO);
        }
        let waited = now.saturating_duration_since(self.since);
        let (ranks, first) = self.group.awaited();
        let shared = &self.engine.shared;
        let Some(first) = first else {
            shared.region.set_activity(Activity::Idle(self.engine.calls));
            return Ok(waited.clamp(SLEEP_MIN, SLEEP_MAX));
        };
        if waited < POLL_FOR {
            std::thread::yield_now();
            return Ok(Duration::ZERO);
        }
        let shown = Signature { shape: IN_GROUP, ..first.signature };
        shared.region.publish_call(first.activity, signature_codec::encode(&shown));
        shared.wait_record.publish(&ranks, waited);
        let failure = ranks.iter().find_map(|rank| shared.failure(*rank, &first, waited));
        match failure {
            // Messages that arrived before the failure are still delivered.
            Some(_) if self.engine.progress(&mut self.group)? => Ok(Duration::ZERO),
            Some(error) => Err(self.engine.shared.publish_or_adopt(error, &first)),
            None => Ok(waited.min(SLEEP_MIN)),
        }
    }

    /// Waits for the remaining messages, once the network has none.
    pub fn wait(mut self) -> Result {
        self.engine.wait_group(&mut self.group)
    }
}

impl Drop for P2pExchange<'_, '_> {
    fn drop(&mut self) {
        self.engine.shared.region.set_activity(Activity::Idle(self.engine.calls));
    }
}
