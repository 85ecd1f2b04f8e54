//! The end of a run: final checkpoint, validation, sample and summary.

use regatta_comm::gather;

use super::{Result, TrainError, TrainingLoop, is_due};
use crate::metrics::{EndReason, Event, RankBytes, Summary};

/// Maximum number of ranks with individual byte counts in the summary.
const MAX_REPORTED_RANKS: u32 = 64;

impl TrainingLoop {
    /// Saves the final checkpoint, validates, generates a sample and reports the summary.
    pub(super) fn finish(&mut self, reason: EndReason, emit: &mut dyn FnMut(Event)) -> Result<()> {
        let saved = self.save_final_checkpoint(emit);
        let is_new = self.done > self.throughput.info.start_step;
        let is_complete = is_new && reason == EndReason::Completed;
        if is_complete || is_new && is_due(self.done, self.config.train.eval_interval) {
            self.validate(emit)?;
        }
        if is_complete && self.comm.rank() == 0 {
            self.sample().into_iter().for_each(&mut *emit);
        }
        saved?;
        let summary = self.throughput.summary(reason, self.done);
        let own = RankBytes {
            rank: self.comm.rank() as usize,
            memory: self.usage.memory(&self.engine),
            sent: self.usage.sent(),
            disk_io: self.usage.disk_io(),
        };
        let ranks = match self.comm.size() <= MAX_REPORTED_RANKS {
            true => gather::all_gather(&*self.comm, &own)?,
            false => Vec::new(),
        };
        let RankBytes { memory, sent, disk_io, .. } = own;
        let checkpoint = self.complete_checkpoint;
        emit(Event::End(Box::new(Summary { checkpoint, memory, sent, disk_io, ranks, ..summary })));
        Ok(())
    }

    /// A failure of the final checkpoint is an error.
    fn save_final_checkpoint(&mut self, emit: &mut dyn FnMut(Event)) -> Result<()> {
        if self.manager.is_none() {
            return Ok(());
        }
        if self.last_checkpoint != Some(self.done) {
            self.start_checkpoint(emit)?;
        }
        match self.finish_checkpoint(emit)? {
            Some(why) => Err(TrainError::FinalCheckpoint { step: self.done, why }),
            None => Ok(()),
        }
    }
}
