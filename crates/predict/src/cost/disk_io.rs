//! Disk traffic of a rank per step.

use super::RankModel;
use super::block_classes::BlockClass;
use crate::rank_bytes::IoBytes;

impl RankModel<'_> {
    /// Bytes read and written per step: offloaded state once for the update, parameters also for every
    /// pass that uses them.
    pub(super) fn disk_io(&self) -> IoBytes {
        let offload = self.plan.disk_offload;
        let mut io = IoBytes::default();
        if offload.optimizer {
            let moments = 2 * self.sum(|block| self.shard_bytes(block));
            io += IoBytes { read: moments, written: moments };
        }
        if offload.params {
            let uses = |block: &BlockClass| self.micro_batches() * self.unshards(block.role) + 1;
            let read = self.sum(|block| uses(block) * self.shard_bytes(block));
            io += IoBytes { read, written: self.sum(|block| self.shard_bytes(block)) };
        }
        io
    }

    fn shard_bytes(&self, block: &BlockClass) -> u64 {
        self.shard_len(block) as u64 * self.options.master_bytes
    }
}
