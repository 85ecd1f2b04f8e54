//! What a rank has of each block, and who has the rest.

use std::ops::Range;

use regatta_comm::CommError;

use crate::offload::{Offload, Where};
use crate::parallel::{Company, Groups, Zero};
use regatta_predict::shape::Block;

/// How state is shared among ranks, and where it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// What ranks share.
    pub zero: Zero,
    /// What is kept elsewhere.
    pub offload: Offload,
}

impl Sharing {
    /// Shares of this kind, all in memory.
    pub fn zero(zero: Zero) -> Self {
        Self { zero, ..Self::default() }
    }

    /// What ranks really share: one that shares with nobody has all, and parameters on disk are
    /// shared by those who could.
    fn settled(&self, ranks: usize) -> Zero {
        match (ranks, self.offload.parameters) {
            (1, _) => Zero::Nothing,
            (_, Where::Disk) => Zero::Parameters,
            _ => self.zero,
        }
    }
}

fn ranks(company: &Company) -> usize {
    company.as_ref().map_or(1, |comm| comm.size() as usize)
}

/// Shares begin at a multiple of so many numbers, as parameters do.
const ALIGNED: usize = 32;

/// How this rank shares blocks with others.
#[derive(Clone)]
pub struct Split {
    /// What is shared.
    pub zero: Zero,
    /// With whom; nothing if nothing is.
    pub shard: Company,
    /// The same ranks, for parameters that come in the background while others talk.
    pub parameters: Company,
    /// Who has the same share; if nothing is shared, the same of everything.
    pub replica: Company,
    rank: usize,
    ranks: usize,
}

impl Split {
    /// Of a rank among its groups.
    pub fn new(how: &Sharing, groups: &Groups) -> Result<Self, CommError> {
        let zero = how.settled(ranks(&groups.shard));
        let shard = groups.shard.clone().filter(|_| zero > Zero::Nothing);
        let Some(comm) = &shard else {
            let replica = groups.data.clone();
            return Ok(Self { zero, shard, parameters: None, replica, rank: 0, ranks: 1 });
        };
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        // What goes on beyond the end of a step must not be in the way of what others say there.
        let parameters = match zero {
            Zero::Parameters => shard.clone(),
            _ => comm.split(Some(0), rank as i64)?.map(Into::into),
        };
        Ok(Self { zero, parameters, replica: groups.replica.clone(), rank, ranks, shard })
    }

    /// How many ranks share a block.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// How many numbers a block has that can be shared equally; those behind its own are zero.
    pub fn room(&self, block: &Block) -> usize {
        block.room().next_multiple_of(self.ranks * ALIGNED)
    }

    /// This rank's.
    pub fn share(&self, block: &Block) -> Range<usize> {
        let each = self.room(block) / self.ranks;
        self.rank * each..(self.rank + 1) * each
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_predict::shape::Family;
    use regatta_predict::testing::shape;

    #[test]
    fn shares_are_equal_and_cover_a_block() {
        for ranks in 1..6 {
            let one = |rank| {
                let (zero, none) = (Zero::Moments, || None);
                Split { zero, shard: none(), parameters: none(), replica: none(), rank, ranks }
            };
            for block in shape(Family::Gpt2).blocks() {
                let shares: Vec<_> = (0..ranks).map(|rank| one(rank).share(&block)).collect();
                assert!(shares.iter().all(|share| share.len() == shares[0].len()));
                assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
                assert!(shares.iter().all(|share| share.start.is_multiple_of(ALIGNED)));
                let (room, end) = (one(0).room(&block), shares[ranks - 1].end);
                assert!(end == room && room >= block.room() && room < block.room() + ranks * 32);
            }
        }
    }

    #[test]
    fn parameters_on_disk_are_shared() {
        let offload = Offload { parameters: Where::Disk, ..Offload::default() };
        let how = Sharing { zero: Zero::Moments, offload };
        assert_eq!((how.settled(1), how.settled(2)), (Zero::Nothing, Zero::Parameters));
        assert_eq!(Sharing::zero(Zero::Gradients).settled(1), Zero::Nothing);
    }
}
