//! Communicator for the ranks of one node, over shared memory.
//!
//! Ranks synchronise by *posts*: a sequence number and, for small payloads, the data itself
//! (`region.rs`). Larger payloads go through slots in rounds (`round_plan.rs`); each rank posts one
//! round ahead of what it reads, which hides small delays. Waits spin, then sleep, and are always
//! bounded (`wait.rs`): they report to the control plane (`crate::control`), which decides on
//! faults.
//!
//! Ranks read large inputs from the memory of each other's processes, if they are permitted to
//! (`single_copy.rs`). Large buffers allocated by the communicator are in memory that all ranks map
//! (`arena.rs`) and are reduced without copies (`zero_copy.rs`).
//!
//! The memory is an anonymous file that rank 0 creates and passes to the others over an abstract
//! socket (`bootstrap.rs`): nothing is left behind if a rank is killed, and other users have no
//! access.

mod arena;
mod bootstrap;
mod buffers;
mod copy_collectives;
mod cross_memory;
mod l3;
mod layout;
mod membarrier;
mod p2p;
mod payload;
mod policy;
mod reduce;
mod region;
mod round_plan;
mod segment;
mod single_copy;
mod single_post;
mod wait;
mod zero_copy;

use std::sync::Arc;

use self::buffers::Buffers;
use self::layout::{PAYLOAD_SLOTS, READ_LAG};
use self::p2p::P2pRings;
use self::payload::SlotKind;
use self::policy::ShmPolicy;
use self::round_plan::RoundPlan;
use self::single_post::longest_contribution;
use self::wait::{CallCtx, ShmState};
use crate::control::{CommMonitor, signature_codec};
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine};
use crate::error::Peer;
use crate::reduce_kernel::stream;
use crate::transports::{SharedMemory, Transports};
use crate::{Call, CallKind, CommError, Result, Signature};

pub(crate) use self::bootstrap::join;

/// Bytes of a buffer per slot, unless the caller decides otherwise.
pub const CHUNK_BYTES: usize = 256 << 10;

/// One rank.
#[derive(Debug)]
pub struct ShmEngine {
    shared: Arc<ShmState>,
    /// Sequence number of the next post.
    next: u64,
    /// Digest of all posts so far.
    digest: u64,
    /// All ranks have made the same posts up to this one.
    compared: u64,
    /// Number of collectives started.
    calls: u64,
    p2p: P2pRings,
    policy: ShmPolicy,
    /// Memory for inputs fetched from other ranks.
    fetched: Vec<u8>,
}

impl ShmEngine {
    fn new(shared: ShmState) -> Self {
        let ranks = shared.peers.len();
        Self {
            p2p: P2pRings::new(ranks),
            policy: ShmPolicy {
                ranks,
                chunk_bytes: shared.region.layout.chunk_bytes,
                shared_l3: shared.region.all_share_l3(),
                reads_memory: shared.region.reads_memory(),
            },
            fetched: Vec::new(),
            shared: Arc::new(shared),
            next: 1,
            digest: 0,
            compared: 0,
            calls: 0,
        }
    }

    fn rank(&self) -> usize {
        self.shared.region.rank
    }

    fn ranks(&self) -> usize {
        self.shared.peers.len()
    }

    /// The other ranks.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank();
        (0..self.ranks()).filter(move |other| *other != rank)
    }

    #[inline]
    fn begin(&mut self, signature: Signature) -> Result<CallCtx> {
        self.calls += 1;
        let ctx = CallCtx {
            calls: self.calls,
            signature,
            digest: signature_codec::digest(signature_codec::encode(&signature)),
        };
        if let Some(error) = self.shared.announced_error(&ctx) {
            return Err(self.shared.fail_with(error));
        }
        if self.shared.config.debug {
            let seq = self.next_post(SlotKind::Inline, &ctx)?;
            self.post(seq, SlotKind::Inline, &ctx);
            self.others().try_for_each(|other| self.shared.await_post(other, seq, &ctx))?;
        }
        Ok(ctx)
    }

    /// The sequence number of the next post, once its line and slot are free.
    #[inline]
    fn next_post(&mut self, slot: SlotKind, ctx: &CallCtx) -> Result<u64> {
        let seq = self.next;
        // All ranks must have read the post that it replaces.
        let capacity = match slot {
            SlotKind::Inline => self.shared.region.layout.post_ring,
            SlotKind::Slot => PAYLOAD_SLOTS,
        };
        let read = (seq + READ_LAG).saturating_sub(capacity);
        if read > self.compared {
            let mut compared = seq - 1;
            for other in self.others() {
                compared = compared.min(self.compare(other, read, ctx)?);
            }
            self.compared = compared;
        }
        Ok(seq)
    }

    /// Waits for another rank's post `read` and checks that the rank has made the same calls as this
    /// one; not every post is waited for. Returns the last post that was compared: a later one, if
    /// the other has made it already, so that the next posts need no comparison.
    fn compare(&self, other: usize, read: u64, ctx: &CallCtx) -> Result<u64> {
        let region = &self.shared.region;
        loop {
            // A rank that is ahead has replaced the post `read`, but not this rank's last one. One
            // that is behind has usually made the post in between.
            let last = self.next - 1;
            for seq in [last, (last + read) / 2, read] {
                if let Some(digest) = region.digest(other, seq) {
                    return match region.digest(region.rank, seq) == Some(digest) {
                        true => Ok(seq),
                        false => Err(self.shared.mismatch_error(other, ctx)),
                    };
                }
            }
            self.shared.wait(other, ctx, || region.has_posted(other, read))?;
        }
    }

    #[inline]
    fn post(&mut self, seq: u64, slot: SlotKind, ctx: &CallCtx) {
        if matches!(slot, SlotKind::Slot) && !self.policy.shared_l3 {
            stream::sfence();
        }
        self.digest = signature_codec::mix(self.digest, ctx.digest);
        self.shared.region.post(seq, self.digest);
        self.shared.region.prefetch_own_post(seq + 1);
        self.next = seq + 1;
    }

    /// Runs a collective with this signature.
    pub(crate) fn run_collective(&mut self, mut call: Call<'_>, signature: Signature) -> Result {
        let ctx = self.begin(signature)?;
        if let Some(bytes) = longest_contribution(&call, self.ranks())
            && self.policy.uses_single_post(call.kind, bytes)
        {
            return self.run_single_post(&ctx, &mut call, bytes);
        }
        match call.kind {
            CallKind::AllReduce | CallKind::Reduce => self.reduce(&ctx, call),
            _ => self.run_rounds(&ctx, call),
        }
    }

    /// Runs a collective that moves blocks, in rounds or by reading the memory of the senders.
    fn run_rounds(&mut self, ctx: &CallCtx, call: Call<'_>) -> Result {
        use CallKind::ReduceScatter;
        let max_block_bytes = self.max_block_bytes(&call, ctx)?;
        let chunk = self.shared.region.layout.chunk_bytes;
        let plan = RoundPlan::new(&call, self.rank(), self.ranks(), chunk, max_block_bytes);
        let (kind, of) = (call.kind, (call.dtype, call.op));
        let buffers = Buffers::new(call, self.rank());
        let single_copy = self.policy.uses_single_copy(kind, plan.bytes) && plan.is_regular;
        let addresses = match single_copy {
            true => self.exchange_addresses(ctx, &plan, &buffers)?,
            false => None,
        };
        match (kind, addresses) {
            (ReduceScatter, Some(addresses)) => {
                let inputs = self.remote_inputs(addresses);
                self.reduce_scatter_single_copy(ctx, &plan, of, &buffers, inputs)
            }
            (ReduceScatter, None) => self.reduce_scatter(ctx, &plan, of, &buffers),
            (_, Some(addresses)) => self.run_single_copies(ctx, &plan, &buffers, &addresses),
            (_, None) => self.run_copies(ctx, &plan, &buffers),
        }
    }
}

impl Engine for ShmEngine {
    fn rank(&self) -> u32 {
        self.shared.region.rank as u32
    }

    fn peers(&self) -> Vec<Peer> {
        self.shared.peers.clone()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        if call.kind.is_p2p() {
            return self.run_p2p(vec![call]);
        }
        let signature = call.signature(self.ranks());
        self.run_collective(call, signature)
    }

    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        let mut group = self.post_group(messages)?;
        self.wait_group(&mut group)
    }

    /// A hierarchical communicator splits the network's engine and connects the new nodes.
    fn split(&mut self, _colour: Option<u32>, _key: i64) -> Result<Option<BoxEngine>> {
        Err(CommError::invalid_call("split", "shared memory alone cannot be split"))
    }

    fn allocator(&self) -> Allocator {
        let Some(arena) = self.shared.arena.clone() else { return Allocator::default() };
        Allocator { host: Arc::new(move |bytes| arena.buffer(bytes)), device: None }
    }

    fn abort_fn(&self) -> AbortFn {
        self.shared.monitor.abort_fn()
    }

    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        Some(self.shared.monitor.clone())
    }

    fn transports(&self) -> Transports {
        let shared_memory = match self.policy.reads_memory {
            true => SharedMemory::CrossMemoryAttach,
            false => SharedMemory::Copied,
        };
        Transports { shared_memory: Some(shared_memory), network: None }
    }
}

/// Publishes that this rank will not post again.
impl Drop for ShmEngine {
    fn drop(&mut self) {
        if self.shared.monitor.has_failed() {
            self.shared.show_failure();
        }
        self.shared.region.mark_closed();
    }
}
