//! Checkpoints during a run, and the end of the run.

use regatta_comm::{Collectives, ReduceOp};

use super::checkpointing::SaveOutcome;
use super::{Result, TrainError, TrainingLoop, gather, is_due};
use crate::checkpoint::CheckpointMeta;
use crate::metrics::{EndReason, Event, RankBytes, Summary};

/// Maximum number of ranks with individual byte counts in the summary.
const MAX_REPORTED_RANKS: u32 = 64;

impl TrainingLoop {
    /// Starts a checkpoint, after the previous one has finished: two at a time would need twice the memory.
    pub(super) fn start_checkpoint(&mut self, emit: &mut dyn FnMut(Event)) -> Result<()> {
        self.finish_checkpoint(emit)?;
        self.check_parameters()?;
        let meta = self.checkpoint_meta();
        let Some(manager) = &mut self.manager else { return Ok(()) };
        self.last_checkpoint = Some(self.done);
        manager.start(&mut self.engine, meta)
    }

    /// Waits for the checkpoint in progress, if any.
    fn finish_checkpoint(&mut self, emit: &mut dyn FnMut(Event)) -> Result<Option<String>> {
        let Some(manager) = &mut self.manager else { return Ok(None) };
        manager.wait();
        let mut counts = manager.save_counts();
        self.comm.all_reduce(&mut counts, ReduceOp::Sum)?;
        self.handle_save_counts(counts, emit)
    }

    /// Handles the save counts of all ranks. Returns why the checkpoint failed, if it did.
    pub(super) fn handle_save_counts(
        &mut self,
        counts: [f64; 2],
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<String>> {
        let outcome = self.manager.as_mut().and_then(|manager| manager.resolve(counts));
        let Some(outcome) = outcome else { return Ok(None) };
        match outcome {
            SaveOutcome::Complete { step, folder, seconds, notes } => {
                notes.into_iter().for_each(|note| emit(Event::Note(note)));
                if let Some(folder) = folder {
                    let dir = folder.display().to_string();
                    emit(Event::Checkpoint { step, dir, seconds });
                }
                Ok(None)
            }
            SaveOutcome::Failed { step, why } => {
                let own = why.map(|error| error.to_string());
                // If all ranks have written, only the commit on rank 0 can have failed.
                let why = match counts {
                    [_, failed] if failed > 0.0 => gather::first_error(&*self.comm, own)?,
                    _ => own,
                };
                let why = why.unwrap_or_default();
                emit(Event::Note(format!("checkpoint after step {step} failed: {why}")));
                Ok(Some(why))
            }
        }
    }

    pub(super) fn checkpoint_meta(&self) -> CheckpointMeta {
        CheckpointMeta {
            step: self.done,
            tokens: self.tokens,
            seed: self.config.train.seed,
            shape: self.engine.device_model.model.shape.clone(),
            config: self.config.to_toml(),
            tokenizer: self.dataset.tokenizer.fingerprint(),
            extra: self.extra.clone(),
        }
    }

    /// Saves the final checkpoint, validates, generates a sample and reports the summary.
    pub(super) fn finish(&mut self, reason: EndReason, emit: &mut dyn FnMut(Event)) -> Result<()> {
        let saved = self.save_final_checkpoint(emit);
        let is_new = self.done > self.throughput.start_step;
        let is_complete = is_new && reason == EndReason::Completed;
        if is_complete || is_new && is_due(self.done, self.config.train.eval_interval) {
            self.validate(emit)?;
        }
        if is_complete && self.comm.rank() == 0 {
            self.sample().into_iter().for_each(&mut *emit);
        }
        saved?;
        let summary = self.throughput.summary(reason, self.done, &self.folder);
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
        emit(Event::End(Box::new(Summary { memory, sent, disk_io, ranks, ..summary })));
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
