//! What a rank reads from disk and writes there in a step.

use super::Part;
use super::blocks::Alike;
use crate::moved::Moved;

impl Part<'_> {
    /// What this rank reads and writes in a step. What is on disk comes and goes once for the update;
    /// parameters come whenever a pass needs them, too.
    pub(super) fn moves(&self) -> Moved {
        let on_disk = self.plan.on_disk;
        let mut moved = Moved::default();
        if on_disk.moments {
            let both = 2 * self.sum(|block| self.share_bytes(block));
            moved += Moved { read: both, written: both };
        }
        if on_disk.parameters {
            let times = |block: &Alike| self.micros() * self.gathers(block.place) + 1;
            let read = self.sum(|block| times(block) * self.share_bytes(block));
            moved += Moved { read, written: self.sum(|block| self.share_bytes(block)) };
        }
        moved
    }

    fn share_bytes(&self, block: &Alike) -> u64 {
        (self.room(block) / self.sharing()) as u64 * self.form.real
    }
}
