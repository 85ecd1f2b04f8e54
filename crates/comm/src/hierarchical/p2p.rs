//! Point-to-point messages: shared memory within a node, the network between nodes. Two ranks always
//! use the same transport, so that their messages keep their order.

use regatta_wire::clock;

use super::Hierarchical;
use crate::engine::Engine;
use crate::{Call, Result};

impl Hierarchical {
    /// Runs all messages of a group concurrently, on both transports.
    pub(super) fn exchange(&mut self, messages: Vec<Call<'_>>) -> Result {
        let Some(local) = self.local.as_mut() else {
            return self.world.run_group(messages);
        };
        let (mut local_messages, remote_messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|call| self.layout.is_on_this_node(call.root));
        for call in &mut local_messages {
            call.root = self.layout.coords(call.root).1;
        }
        if remote_messages.is_empty() {
            return local.run_group(local_messages);
        }
        let mut exchange = local.exchange(local_messages, clock::now())?;
        let mut progress = || exchange.progress(clock::now());
        self.world.run_p2p_with(remote_messages, &mut progress)?;
        exchange.wait()
    }
}
