//! Makes a power of two of any number of members: of some pairs at the beginning, the second gives
//! what it has to the first, stays out, and gets the result at the end.

use super::build::Group;

/// A member's role.
pub(super) enum Role {
    /// It works, as `index` of a power of two.
    Works {
        index: u32,
        /// The rank for which it works, too.
        also_for: Option<u32>,
    },
    /// This rank works for it.
    Out(u32),
}

/// Who works for whom in a group.
pub(super) struct Fold<'a> {
    group: &'a Group,
    /// How many stay out.
    extra: u32,
}

impl<'a> Fold<'a> {
    pub fn new(group: &'a Group) -> Self {
        let extra = group.size() - (1 << group.size().ilog2());
        Self { group, extra }
    }

    /// How many work.
    pub fn workers(&self) -> u32 {
        self.group.size() - self.extra
    }

    /// What this rank does.
    pub fn role(&self) -> Role {
        let me = self.group.me;
        match me < 2 * self.extra {
            true if me % 2 == 1 => Role::Out(self.group.rank(me - 1)),
            true => Role::Works { index: me / 2, also_for: Some(self.group.rank(me + 1)) },
            false => Role::Works { index: me - self.extra, also_for: None },
        }
    }

    /// The rank that works as `index`.
    pub fn worker(&self, index: u32) -> u32 {
        let at = if index < self.extra { 2 * index } else { index + self.extra };
        self.group.rank(at)
    }
}
