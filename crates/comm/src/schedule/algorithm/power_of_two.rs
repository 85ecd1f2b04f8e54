//! Folds any number of members to a power of two: in some of the leading pairs the second member
//! follows the first.

use std::ops::Range;

use super::build::{RankGroup, follow, lead};
use crate::schedule::{BufferKind, Round};

/// The active members, a power of two.
pub(super) struct PowerOfTwo<'a> {
    group: &'a RankGroup,
    /// Number of idle members.
    extra: u32,
    /// This rank's index.
    pub index: u32,
}

impl<'a> PowerOfTwo<'a> {
    pub fn new(group: &'a RankGroup) -> Self {
        let extra = group.size() - (1 << group.size().ilog2());
        let index = if group.me < 2 * extra { group.me / 2 } else { group.me - extra };
        Self { group, extra, index }
    }

    /// Number of active members.
    pub fn size(&self) -> u32 {
        self.group.size() - self.extra
    }

    /// The rank with this index.
    pub fn rank(&self, index: u32) -> u32 {
        let at = if index < self.extra { 2 * index } else { index + self.extra };
        self.group.rank(at)
    }

    /// Distances between partners: 1, 2, 4, …
    pub fn distances(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        (0..self.size().ilog2()).map(|k| 1 << k)
    }

    /// An all-reduce in which `active` returns the rounds between active members.
    pub fn all_reduce(
        &self,
        source: BufferKind,
        blocks: Range<u32>,
        active: impl FnOnce(BufferKind) -> Vec<Round>,
    ) -> Vec<Round> {
        let me = self.group.me;
        let partner = (me < 2 * self.extra).then(|| self.group.rank(me ^ 1));
        match partner {
            Some(leader) if me % 2 == 1 => follow(leader, source, blocks),
            follower => lead(follower.as_slice(), source, blocks, active),
        }
    }
}
