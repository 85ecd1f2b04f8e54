//! What is done at once when a communicator is over, for those who wait where they do not hear of it.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use crate::background::Abort;
use crate::blame::Waits;
use crate::tcp::control::Fault;

/// What is to be done as soon as a communicator is known to be over.
pub struct Hook {
    pub channel: u64,
    pub members: Vec<u32>,
    pub call: Abort,
    /// Whom its parts wait for, of whom only they know, by their places in it.
    pub waits: Waits,
}

impl Shared {
    /// A communicator, or each that it concerns, is over.
    pub fn fault(&self, channel: Option<u64>, fault: Fault) {
        let why = fault.to_string();
        let hooks = self.hooks();
        let concerned = |hook: &&Hook| match channel {
            Some(channel) => hook.channel == channel,
            None => fault.concerns(&hook.members),
        };
        let calls: Vec<Abort> = hooks.iter().filter(concerned).map(|h| h.call.clone()).collect();
        drop(hooks);
        self.tell(|mesh| mesh.news.faults.push((channel, fault)));
        calls.iter().for_each(|call| call(&why));
    }

    /// Whom this rank waits for, in all its communicators, and how long already.
    pub fn waits(&self) -> Vec<(u32, Duration)> {
        let of = |hook: &Hook| {
            let world =
                |(at, waited): (u32, Duration)| Some((*hook.members.get(at as usize)?, waited));
            (hook.waits)().into_iter().filter_map(world).collect::<Vec<_>>()
        };
        let mut all: Vec<(u32, Duration)> = self.hooks().iter().flat_map(of).collect();
        all.extend(self.lock().channels.waits(Instant::now()));
        all
    }

    pub fn hooks(&self) -> MutexGuard<'_, Vec<Hook>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
