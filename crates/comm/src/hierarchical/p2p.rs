//! Point-to-point messages: shared memory within a node, the network between nodes. Two ranks always
//! use the same transport, so that their messages keep their order.

use regatta_wire::clock;

use super::Hierarchical;
use super::subgroup::Subgroup;
use crate::engine::Engine;
use crate::{Call, CommError, Result};

impl Hierarchical {
    /// Runs all messages of a group concurrently, on both transports.
    pub(super) fn exchange(&mut self, messages: Vec<Call<'_>>) -> Result {
        let Some(Subgroup { engine: local, members }) = self.local.as_mut() else {
            return self.world.run_group(messages);
        };
        local.outer_calls = Some(self.calls);
        let (mut local_messages, remote_messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|call| self.layout.is_on_this_node(call.root));
        for call in &mut local_messages {
            call.root = self.layout.coords(call.root).1;
        }
        let translate = |error: CommError| error.translate_ranks(members);
        if remote_messages.is_empty() {
            return local.run_group(local_messages).map_err(translate);
        }
        let mut exchange = local.exchange(local_messages, clock::now()).map_err(translate)?;
        let mut progress = || exchange.progress(clock::now()).map_err(translate);
        self.world.run_p2p_with(remote_messages, &mut progress)?;
        exchange.wait().map_err(translate)
    }
}
