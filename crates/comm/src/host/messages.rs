//! Messages: through shared memory between ranks of one node, through the network between nodes.
//! Two ranks always use the same way, so that their messages keep their order.

use std::time::Instant;

use super::Host;
use super::part::{Part, renamed};
use crate::background::Engine;
use crate::{Call, CommError};

impl Host {
    /// All messages of a group at once, whichever way they go.
    pub(super) fn exchange(&mut self, messages: Vec<Call<'_>>) -> Result<(), CommError> {
        let Some(Part { engine: local, members }) = self.local.as_mut() else {
            return self.world.run_group(messages);
        };
        let (mut inside, outside): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|call| self.layout.is_here(call.root));
        for call in &mut inside {
            call.root = self.layout.place(call.root).1;
        }
        let of_whole = |error| renamed(error, members);
        if outside.is_empty() {
            return local.run_group(inside).map_err(of_whole);
        }
        let mut near = local.exchange(inside, Instant::now()).map_err(of_whole)?;
        let mut turn = || near.turn(Instant::now()).map_err(of_whole);
        self.world.run_messages_beside(outside, &mut turn)?;
        near.finish().map_err(of_whole)
    }
}
