//! Folds any number of members to a power of two: in some of the leading pairs the second member
//! sends its data to the first, idles, and receives the result at the end.

use super::build::RankGroup;

/// The role of a member.
pub(super) enum FoldRole {
    /// Participates as `index` of a power of two.
    Active {
        index: u32,
        /// The idle rank whose data was folded into this one.
        folded_rank: Option<u32>,
    },
    /// Idle; its data is folded into this rank.
    Folded(u32),
}

/// The folding of a group.
pub(super) struct PowerOfTwoFold<'a> {
    group: &'a RankGroup,
    /// Number of idle members.
    extra: u32,
}

impl<'a> PowerOfTwoFold<'a> {
    pub fn new(group: &'a RankGroup) -> Self {
        let extra = group.size() - (1 << group.size().ilog2());
        Self { group, extra }
    }

    /// Number of active members.
    pub fn workers(&self) -> u32 {
        self.group.size() - self.extra
    }

    /// The role of this rank.
    pub fn role(&self) -> FoldRole {
        let me = self.group.me;
        match me < 2 * self.extra {
            true if me % 2 == 1 => FoldRole::Folded(self.group.rank(me - 1)),
            true => FoldRole::Active { index: me / 2, folded_rank: Some(self.group.rank(me + 1)) },
            false => FoldRole::Active { index: me - self.extra, folded_rank: None },
        }
    }

    /// The active rank with this index.
    pub fn worker(&self, index: u32) -> u32 {
        let at = if index < self.extra { 2 * index } else { index + self.extra };
        self.group.rank(at)
    }
}
