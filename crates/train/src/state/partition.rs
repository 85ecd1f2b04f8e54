//! How the state is partitioned over ranks (ZeRO), and in which memory tiers it is.

use std::ops::Range;

use regatta_comm::CommError;

use crate::offload::OffloadTiers;
use crate::parallel::{ProcessGroup, ProcessGroups, ZeroStage};
use regatta_predict::shape::ParamBlock;

/// How the state is sharded and offloaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardingConfig {
    /// ZeRO stage.
    pub zero: ZeroStage,
    /// Memory tiers.
    pub offload: OffloadTiers,
}

impl ShardingConfig {
    /// A ZeRO stage, all in device memory.
    pub fn zero(zero: ZeroStage) -> Self {
        Self { zero, ..Self::default() }
    }

    /// The stage in effect: one rank shards nothing, and offloaded parameters are sharded if there are
    /// several.
    fn effective_stage(&self, ranks: usize) -> ZeroStage {
        match (ranks, self.offload.parameters.is_offloaded()) {
            (1, _) => ZeroStage::Off,
            (_, true) => ZeroStage::Three,
            _ => self.zero,
        }
    }
}

/// Shards are aligned to this many elements, as parameters are.
const ALIGNMENT: usize = 32;

/// This rank's part in the ZeRO partition.
#[derive(Clone)]
pub struct ZeroPartition {
    /// The stage in effect.
    pub stage: ZeroStage,
    /// Ranks that partition the state; `None` if it is not partitioned.
    pub shard_group: ProcessGroup,
    /// The same ranks with a communicator for parameters, which are gathered in the background.
    pub gather_group: ProcessGroup,
    /// Ranks with the same shard; without partitioning, all ranks with the same parameters.
    pub replica_group: ProcessGroup,
    rank: usize,
    ranks: usize,
}

impl ZeroPartition {
    /// The partition of a rank. Collective over its shard group.
    pub fn new(config: &ShardingConfig, groups: &ProcessGroups) -> Result<Self, CommError> {
        let group_size = groups.shard.as_ref().map_or(1, |comm| comm.size() as usize);
        let stage = config.effective_stage(group_size);
        let shard_group = groups.shard.clone().filter(|_| stage > ZeroStage::Off);
        let Some(comm) = &shard_group else {
            let (gather_group, replica_group) = (None, groups.data.clone());
            return Ok(Self { stage, shard_group, gather_group, replica_group, rank: 0, ranks: 1 });
        };
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        // The all-gather of updated parameters continues beyond the end of a step, and must not delay
        // other collectives of the group.
        let gather_group = match stage {
            ZeroStage::Three => shard_group.clone(),
            _ => comm.split(Some(0), rank as i64)?.map(Into::into),
        };
        let replica_group = groups.replica.clone();
        Ok(Self { stage, gather_group, replica_group, rank, ranks, shard_group })
    }

    /// Ranks that partition a block.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Elements of a block, padded to equal shards; padding is zero.
    pub fn padded_len(&self, block: &ParamBlock) -> usize {
        block.padded_len().next_multiple_of(self.ranks * ALIGNMENT)
    }

    /// This rank's shard of a block.
    pub fn shard(&self, block: &ParamBlock) -> Range<usize> {
        let len = self.padded_len(block) / self.ranks;
        self.rank * len..(self.rank + 1) * len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Tier;
    use regatta_predict::shape::Family;
    use regatta_predict::testing::shape;

    #[test]
    fn shards_are_equal_and_cover_a_block() {
        for ranks in 1..6 {
            let partition = |rank| ZeroPartition {
                stage: ZeroStage::One,
                shard_group: None,
                gather_group: None,
                replica_group: None,
                rank,
                ranks,
            };
            for block in shape(Family::Gpt2).blocks() {
                let shards: Vec<_> = (0..ranks).map(|rank| partition(rank).shard(&block)).collect();
                assert!(shards.iter().all(|shard| shard.len() == shards[0].len()));
                assert!(shards.windows(2).all(|two| two[0].end == two[1].start));
                assert!(shards.iter().all(|shard| shard.start.is_multiple_of(ALIGNMENT)));
                let (len, end) = (partition(0).padded_len(&block), shards[ranks - 1].end);
                let min = block.padded_len();
                assert!(end == len && (min..min + ranks * 32).contains(&len), "{end} {len} {min}");
            }
        }
    }

    #[test]
    fn offloaded_parameters_are_sharded() {
        for parameters in [Tier::Host, Tier::Disk] {
            let offload = OffloadTiers { parameters, ..OffloadTiers::default() };
            let config = ShardingConfig { zero: ZeroStage::One, offload };
            let stages = (config.effective_stage(1), config.effective_stage(2));
            assert_eq!(stages, (ZeroStage::Off, ZeroStage::Three));
        }
        assert_eq!(ShardingConfig::zero(ZeroStage::Two).effective_stage(1), ZeroStage::Off);
    }
}
