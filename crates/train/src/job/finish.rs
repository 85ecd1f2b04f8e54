//! Checkpoints on the way, and the end of a training.

use regatta_comm::{Collectives, ReduceOp};

use super::keep::Kept;
use super::{TrainError, Training, is_due};
use crate::checkpoint::About;
use crate::metrics::{Ended, Event, RankBytes, Summary};

/// Bytes of a reason that ranks tell each other; more is cut away.
const REASON: usize = 1024;

/// Ranks of whose bytes is told.
const TOLD: usize = 64;

impl Training {
    /// Begins a checkpoint. One that is still being written is waited for: two at a time would need
    /// twice the memory.
    pub(super) fn begin_keeping(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        self.end_keeping(tell)?;
        self.check_parameters()?;
        let about = self.about();
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        self.kept = Some(self.done);
        keeper.begin(&mut self.engine, about)
    }

    /// Waits for the checkpoint that is under way, if one is on any rank.
    fn end_keeping(&mut self, tell: &mut dyn FnMut(Event)) -> Result<Option<String>, TrainError> {
        let Some(keeper) = &mut self.keeper else { return Ok(None) };
        keeper.wait();
        let mut said = keeper.says();
        self.comm.all_reduce(&mut said, ReduceOp::Sum)?;
        self.hear(said, tell)
    }

    /// Hears what ranks have to say about a checkpoint. Returns why it failed, if it did.
    pub(super) fn hear(
        &mut self,
        said: [f64; 2],
        tell: &mut dyn FnMut(Event),
    ) -> Result<Option<String>, TrainError> {
        let Some(kept) = self.keeper.as_mut().and_then(|keeper| keeper.hear(said)) else {
            return Ok(None);
        };
        match kept {
            Kept::Complete { step, folder, seconds, notes } => {
                notes.into_iter().for_each(|note| tell(Event::Note(note)));
                if let Some(folder) = folder {
                    let folder = folder.display().to_string();
                    tell(Event::Checkpoint { step, folder, seconds });
                }
                Ok(None)
            }
            Kept::Failed { step, why } => {
                let own = why.map(|error| error.to_string());
                // Rank 0 may fail alone, when all have written.
                let why = match said {
                    [_, failed] if failed > 0.0 => self.first_reason(own)?,
                    _ => own.unwrap_or_default(),
                };
                tell(Event::Note(format!("no checkpoint after step {step}: {why}")));
                Ok(Some(why))
            }
        }
    }

    /// Tells all ranks why the first of those failed that did.
    fn first_reason(&self, own: Option<String>) -> Result<String, TrainError> {
        let mut room = [0; REASON];
        let own = own.unwrap_or_default();
        room.iter_mut().zip(own.bytes()).for_each(|(to, from)| *to = from);
        let mut all = vec![0; REASON * self.comm.size() as usize];
        self.comm.all_gather(&room, &mut all)?;
        let mut ranks = (0..).zip(all.chunks_exact(REASON));
        let first = ranks.find(|(_, text)| text[0] != 0);
        Ok(first.map_or_else(String::new, |(rank, text)| {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(REASON);
            let host = self.comm.peer(rank).host;
            format!("rank {rank} on {host}: {}", String::from_utf8_lossy(&text[..end]))
        }))
    }

    pub(super) fn about(&self) -> About {
        About {
            step: self.done,
            tokens: self.tokens,
            seed: self.config.train.seed,
            shape: self.engine.net.model.shape.clone(),
            config: self.config.to_toml(),
            tokenizer: self.dataset.tokenizer.fingerprint(),
            extra: self.extra.clone(),
        }
    }

    /// Keeps what was trained, writes a text, and says how it went.
    pub(super) fn finish(
        &mut self,
        ended: Ended,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), TrainError> {
        let keeping = self.keep_last(tell);
        let is_new = self.speed.is_new(self.done);
        let is_whole = is_new && ended == Ended::Done;
        if is_whole || is_new && is_due(self.done, self.config.train.eval_every) {
            self.validate(tell)?;
        }
        if is_whole && self.comm.rank() == 0 {
            self.sample().into_iter().for_each(&mut *tell);
        }
        keeping?;
        let summary = self.speed.summary(ended, self.done, &self.folder);
        let own = RankBytes {
            rank: self.comm.rank() as usize,
            held: self.traffic.held(&self.engine),
            sent: self.traffic.sent(),
            moved: self.traffic.moved(),
        };
        let ranks = self.bytes_of_all(&own)?;
        let RankBytes { held, sent, moved, .. } = own;
        tell(Event::End(Box::new(Summary { held, sent, moved, ranks, ..summary })));
        Ok(())
    }

    /// What every rank held and sent, unless there are too many to be told.
    fn bytes_of_all(&self, own: &RankBytes) -> Result<Vec<RankBytes>, TrainError> {
        let ranks = self.comm.size() as usize;
        if ranks > TOLD {
            return Ok(Vec::new());
        }
        let own = serde_json::to_vec(own).unwrap_or_default();
        let mut sizes = vec![0; ranks];
        self.comm.all_gather(&[own.len() as i64], &mut sizes)?;
        let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
        let mut all = vec![0; sizes.iter().sum()];
        self.comm.all_gather_v(&own, &mut all, &sizes)?;
        let mut rest = &all[..];
        let read = |size: usize| {
            let (text, after) = rest.split_at(size);
            rest = after;
            serde_json::from_slice(text).ok()
        };
        Ok(sizes.into_iter().filter_map(read).collect())
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
}
