//! Checkpoints on the way, and the end of a training.

use std::time::Instant;

use regatta_comm::{Collectives, ReduceOp};

use super::keep::Kept;
use super::{TrainError, Training};
use crate::checkpoint::About;
use crate::generate::{Generator, Sampling};
use crate::metrics::{Ended, Event};

/// Tokens of the text that a trained model writes at the end.
const SAMPLE: usize = 300;

impl Training {
    /// Begins a checkpoint. One that is still being written is waited for: two at a time would need
    /// twice the memory.
    pub(super) fn begin_keeping(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        self.end_keeping(tell)?;
        let about = self.about();
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        self.kept = Some(self.done);
        keeper.begin(&self.engine, about);
        Ok(())
    }

    /// Waits for the checkpoint that is under way, if one is on any rank.
    fn end_keeping(&mut self, tell: &mut dyn FnMut(Event)) -> Result<Option<String>, TrainError> {
        let Some(keeper) = &mut self.keeper else { return Ok(None) };
        keeper.wait();
        let mut said = keeper.says();
        self.comm.all_reduce(&mut said, ReduceOp::Sum)?;
        Ok(self.hear(said, tell))
    }

    /// Hears what ranks have to say about a checkpoint. Returns why it failed, if it did.
    pub(super) fn hear(&mut self, said: [f64; 2], tell: &mut dyn FnMut(Event)) -> Option<String> {
        match self.keeper.as_mut()?.hear(said)? {
            Kept::Complete { step, folder, seconds, notes } => {
                notes.into_iter().for_each(|note| tell(Event::Note(note)));
                if let Some(folder) = folder {
                    let folder = folder.display().to_string();
                    tell(Event::Checkpoint { step, folder, seconds });
                }
                None
            }
            Kept::Failed { step, why } => {
                let why = why.map_or_else(|| "another rank failed".to_owned(), |e| e.to_string());
                let note =
                    format!("no checkpoint after step {step}, the one before is kept: {why}");
                tell(Event::Note(note));
                Some(why)
            }
        }
    }

    pub(super) fn about(&self) -> About {
        About {
            step: self.done,
            tokens: self.done * self.step_tokens(),
            seed: self.config.train.seed,
            shape: self.engine.net.model.shape.clone(),
            config: self.config.to_toml(),
            tokenizer: self.dataset.tokenizer.fingerprint(),
            extra: Default::default(),
        }
    }

    /// Keeps what was trained, writes a text, and says how it went.
    pub(super) fn finish(
        &mut self,
        ended: Ended,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), TrainError> {
        let keeping = self.keep_last(tell);
        if ended == Ended::Done && self.comm.rank() == 0 {
            if let Some(text) = self.sample() {
                tell(Event::Sample(text));
            }
        }
        tell(Event::End(Box::new(self.speed.summary(ended, self.done, &self.folder))));
        keeping
    }

    /// The last checkpoint is what all was for: it must not fail quietly.
    fn keep_last(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        if self.keeper.is_none() {
            return Ok(());
        }
        if self.kept != Some(self.done) {
            self.begin_keeping(tell)?;
        }
        match self.end_keeping(tell)? {
            Some(why) => Err(TrainError::Unkept { step: self.done, why }),
            None => Ok(()),
        }
    }

    /// What the model writes by itself.
    fn sample(&self) -> Option<String> {
        let tokenizer = &self.dataset.tokenizer;
        let mut first = Vec::new();
        self.dataset.validation.read(0..1, &mut first).ok()?;
        let mut generator = Generator::new(&self.engine.net, &self.engine.state.parameters);
        generator.read(&first);
        let seed = self.config.train.seed;
        let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 1.0, seed };
        let began = Instant::now();
        let mut tokens = first;
        // A large model is slow by itself; nobody waits for this.
        while tokens.len() < SAMPLE && began.elapsed().as_secs() < 5 {
            tokens.push(generator.next(&sampling));
        }
        tokenizer.decode(&tokens).ok()
    }
}
