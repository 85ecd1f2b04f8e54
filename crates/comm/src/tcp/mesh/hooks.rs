//! What is done at once when a communicator is over, for those who wait where they do not hear of it.

use std::sync::{MutexGuard, PoisonError};

use super::Shared;
use crate::background::Abort;
use crate::tcp::control::Fault;

/// What is to be done as soon as a communicator is known to be over.
pub struct Hook {
    pub channel: u64,
    pub members: Vec<u32>,
    pub call: Abort,
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

    pub fn hooks(&self) -> MutexGuard<'_, Vec<Hook>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
