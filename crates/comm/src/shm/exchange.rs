//! Messages in shared memory, while others of their group go through the network: whoever waits for
//! both must not sleep on one of them for long.

use std::time::{Duration, Instant};

use super::ShmEngine;
use super::board::Doing;
use super::group::Group;
use super::sign;
use super::wait::{NAP, NAP_MAX, OF_MANY};
use crate::{Call, CommError, Signature};

/// How long both are looked at by turns before the network is slept on: pieces of a message come
/// one after the other.
const LOOKING: Duration = Duration::from_micros(200);

/// The messages of a group that shared memory carries; there may be none.
pub(crate) struct Exchange<'e, 'c> {
    engine: &'e mut ShmEngine,
    group: Group<'c>,
    /// Since when nothing has moved.
    since: Instant,
}

impl ShmEngine {
    /// Begins messages that go on by [`Exchange::turn`].
    pub(crate) fn exchange<'c>(
        &mut self,
        calls: Vec<Call<'c>>,
        now: Instant,
    ) -> Result<Exchange<'_, 'c>, CommError> {
        let group = self.begin_group(calls)?;
        Ok(Exchange { engine: self, group, since: now })
    }
}

impl Exchange<'_, '_> {
    /// Moves what can be moved, and gives how long it can be left alone. What comes for others than
    /// this group is laid aside, so that who sends it goes on.
    pub fn turn(&mut self, now: Instant) -> Result<Duration, CommError> {
        if self.engine.pass(&mut self.group)? {
            self.since = now;
            self.engine.shared.waiting.say(&[], Duration::ZERO);
            return Ok(Duration::ZERO);
        }
        let waited = now.saturating_duration_since(self.since);
        let (ranks, first) = self.group.awaited();
        let shared = &self.engine.shared;
        let Some(first) = first else {
            shared.board.now(Doing::Nothing(self.engine.calls));
            return Ok(waited.clamp(NAP, NAP_MAX));
        };
        if waited < LOOKING {
            std::thread::yield_now();
            return Ok(Duration::ZERO);
        }
        let shown = Signature { shape: OF_MANY, ..first.signature };
        shared.board.announce(first.doing, sign::encode(&shown));
        shared.waiting.say(&ranks, waited);
        let trouble = ranks.iter().find_map(|rank| shared.trouble(*rank, &first, waited));
        match trouble {
            // What came before the trouble still counts.
            Some(_) if self.engine.pass(&mut self.group)? => Ok(Duration::ZERO),
            Some(error) => Err(self.engine.shared.tell(error, &first)),
            None => Ok(waited.min(NAP)),
        }
    }

    /// Waits for the rest, when there is nothing else any more.
    pub fn finish(mut self) -> Result<(), CommError> {
        self.engine.finish_group(&mut self.group)
    }
}

impl Drop for Exchange<'_, '_> {
    fn drop(&mut self) {
        self.engine.shared.board.now(Doing::Nothing(self.engine.calls));
    }
}
