//! What a rank reads from disk and writes there in a step.

use super::Part;
use crate::offload::Moved;
use crate::shape::Block;

impl Part<'_> {
    /// What this rank reads and writes in a step. What is on disk comes and goes once for the update;
    /// parameters come whenever a pass needs them, too.
    pub(super) fn moves(&self) -> Moved {
        let on_disk = self.plan.on_disk;
        let mut moved = Moved::default();
        for (number, block) in self.held() {
            let share = self.share_bytes(block);
            if on_disk.moments {
                moved += Moved { read: 2 * share, written: 2 * share };
            }
            if on_disk.parameters {
                let times = self.micros() * self.gathers(number) + 1;
                moved += Moved { read: times * share, written: share };
            }
        }
        moved
    }

    fn share_bytes(&self, block: &Block) -> u64 {
        (self.room(block) / self.sharing()) as u64 * self.form.real
    }
}
