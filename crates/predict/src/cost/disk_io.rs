//! Disk traffic of a rank per step.

use super::RankModel;
use super::block_classes::BlockClass;
use crate::layout::{StateTiers, Tier};
use regatta_model::rank_bytes::IoBytes;

impl RankModel<'_> {
    /// Bytes read and written per step: offloaded state once for the update, parameters also for every
    /// pass that uses them.
    pub(super) fn disk_io(&self) -> IoBytes {
        let StateTiers { optimizer, params } = self.plan.offload;
        let options = self.options;
        let shards = self.sum(|block| self.shard_len(block) as u64);
        let mut io = IoBytes::default();
        if optimizer == Tier::Disk {
            let moments = 2 * shards * options.master_bytes;
            io += IoBytes { read: moments, written: moments };
        }
        if params == Tier::Disk {
            let masters = shards * options.master_bytes;
            io += IoBytes { read: masters, written: masters };
            let uses = |block: &BlockClass| self.micro_batches() * self.unshards(block.role);
            let used = self.sum(|block| uses(block) * self.shard_len(block) as u64);
            // The copy that passes read is overwritten by the update.
            let copies = if options.has_weight_copy() { shards } else { 0 };
            let weight = options.weight_bytes;
            io += IoBytes { read: used * weight, written: copies * weight };
        }
        io
    }
}
