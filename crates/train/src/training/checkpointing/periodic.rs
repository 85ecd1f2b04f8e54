//! Checkpoints of the training loop, one at a time and in the background.

use regatta_comm::{Collectives, ReduceOp, gather};

use super::super::{Result, TrainingLoop};
use super::SaveOutcome;
use crate::checkpoint::CheckpointMeta;
use crate::metrics::Event;

impl TrainingLoop {
    /// Starts a checkpoint, after the previous one has finished: two at a time would need twice the memory.
    pub fn start_checkpoint(&mut self, emit: &mut dyn FnMut(Event)) -> Result<()> {
        self.finish_checkpoint(emit)?;
        self.check_parameters()?;
        let meta = self.checkpoint_meta();
        let Some(manager) = &mut self.manager else { return Ok(()) };
        self.last_checkpoint = Some(self.done);
        manager.start(&mut self.engine, meta)
    }

    /// Waits for the checkpoint in progress, if any.
    pub fn finish_checkpoint(&mut self, emit: &mut dyn FnMut(Event)) -> Result<Option<String>> {
        let Some(manager) = &mut self.manager else { return Ok(None) };
        manager.wait();
        let mut counts = manager.save_counts();
        self.comm.all_reduce(&mut counts, ReduceOp::Sum)?;
        self.handle_save_counts(counts, emit)
    }

    /// Handles the save counts of all ranks. Returns why the checkpoint failed, if it did.
    pub fn handle_save_counts(
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
                    self.complete_checkpoint = Some(step);
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

    pub fn checkpoint_meta(&self) -> CheckpointMeta {
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
}
