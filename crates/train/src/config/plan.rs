//! What a configuration means for a number of ranks. Whatever does not fit together is refused
//! here, with numbers that would. No I/O.

use super::{Config, ConfigError};
use crate::schedule::Schedule;
use crate::shape::{Family, Shape};

/// How the sequences of a step are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Ranks that each have a part of the batch.
    pub ranks: usize,
    /// Sequences of a step, of all ranks together.
    pub batch: usize,
    /// Sequences of a step for each rank.
    pub share: usize,
    /// Sequences that a rank works on at once.
    pub micro_batch: usize,
    /// How often it does, a step.
    pub accumulation: usize,
}

impl Config {
    /// The model, for data with so many kinds of tokens.
    pub fn shape(&self, vocabulary: usize) -> Result<Shape, ConfigError> {
        let model = &self.model;
        if model.vocabulary != 0 && model.vocabulary < vocabulary {
            return wrong(format!(
                "model.vocabulary {} is less than the {vocabulary} kinds of tokens of the data: \
                 leave it 0",
                model.vocabulary
            ));
        }
        let usual = model.family != Family::Llama;
        let shape = Shape {
            family: model.family,
            vocabulary: if model.vocabulary == 0 { vocabulary } else { model.vocabulary },
            context: model.context,
            width: model.width,
            layers: model.layers,
            heads: model.heads,
            kv_heads: if model.kv_heads == 0 { model.heads } else { model.kv_heads },
            feed_forward: self.feed_forward(),
            tied: model.tied.or(usual),
            bias: model.bias.or(usual),
            norm_epsilon: model.norm_epsilon,
            rope_base: model.rope_base,
        };
        shape.check().map_err(ConfigError::Contradiction)?;
        Ok(shape)
    }

    fn feed_forward(&self) -> usize {
        let width = self.model.width;
        match (self.model.feed_forward, self.model.family) {
            (0, Family::Llama) => (width * 8).div_ceil(3).next_multiple_of(32),
            (0, _) => 4 * width,
            (given, _) => given,
        }
    }

    /// How so many ranks share a step.
    pub fn validate(&self, ranks: usize) -> Result<Plan, ConfigError> {
        self.check_rates()?;
        let ranks = self.data_parallel(ranks)?;
        let share = self.share(ranks)?;
        let micro_batch = self.micro_batch(share, ranks)?;
        let batch = share * ranks;
        Ok(Plan { ranks, batch, share, micro_batch, accumulation: share / micro_batch })
    }

    /// The learning rate of each step, for so many data-parallel ranks.
    pub fn schedule(&self, ranks: usize) -> Schedule {
        let (optimizer, steps) = (&self.optimizer, self.train.steps);
        let factor = optimizer.scale_rate.factor(ranks);
        Schedule {
            curve: optimizer.schedule,
            rate: optimizer.rate * factor,
            minimum: optimizer.minimum_rate * factor,
            warmup: optimizer.warmup,
            decay: if optimizer.decay_steps == 0 { steps } else { optimizer.decay_steps },
        }
    }

    fn check_rates(&self) -> Result<(), ConfigError> {
        let Schedule { rate, minimum, warmup, decay, .. } = self.schedule(1);
        if minimum > rate {
            return wrong(format!(
                "optimizer.minimum_rate {minimum:?} is above optimizer.rate {rate:?}: a tenth, \
                 {:.1e}, is usual",
                rate / 10.0
            ));
        }
        // A run that ends while the rate still rises is a short trial, and fine.
        if self.optimizer.decay_steps != 0 && warmup > decay {
            return wrong(format!(
                "optimizer.warmup {warmup} is longer than optimizer.decay_steps {decay}: set it to \
                 {} or less",
                decay / 10
            ));
        }
        Ok(())
    }

    fn data_parallel(&self, ranks: usize) -> Result<usize, ConfigError> {
        match self.parallel.dp {
            _ if ranks == 0 => wrong("there is no rank".to_owned()),
            dp if dp != 0 && dp != ranks => wrong(format!(
                "parallel.dp is {dp}, and there are {ranks} ranks: leave it 0 for all, or start {dp}"
            )),
            _ => Ok(ranks),
        }
    }

    /// Sequences of a step for each of so many ranks.
    fn share(&self, ranks: usize) -> Result<usize, ConfigError> {
        let (batch, each) = (self.train.batch, self.train.batch_per_rank);
        if batch == 0 && each == 0 {
            return wrong("train.batch and train.batch_per_rank are 0: set one of them".to_owned());
        }
        if batch == 0 {
            return Ok(each);
        }
        if !batch.is_multiple_of(ranks) {
            let near = either(batch / ranks * ranks, batch.next_multiple_of(ranks));
            let other = nearest_divisors(batch, ranks);
            return wrong(format!(
                "train.batch {batch} does not divide among {ranks} ranks: set it to {near}, start \
                 {other} ranks, or set train.batch_per_rank instead"
            ));
        }
        Ok(batch / ranks)
    }

    /// Sequences that a rank works on at once.
    fn micro_batch(&self, share: usize, ranks: usize) -> Result<usize, ConfigError> {
        let asked = self.train.micro_batch;
        if asked == 0 {
            return Ok(share);
        }
        if !share.is_multiple_of(asked) {
            let whole = match self.train.batch {
                0 => "train.batch_per_rank".to_owned(),
                batch => format!("train.batch {batch} over {ranks} ranks"),
            };
            return wrong(format!(
                "train.micro_batch {asked} does not divide a rank's {share} sequences ({whole}): \
                 set it to {}",
                nearest_divisors(share, asked)
            ));
        }
        Ok(asked)
    }
}

fn wrong<T>(what: String) -> Result<T, ConfigError> {
    Err(ConfigError::Contradiction(what))
}

/// The numbers next to `near`, below and above, that divide `whole`.
fn nearest_divisors(whole: usize, near: usize) -> String {
    let divides = |n: &usize| whole.is_multiple_of(*n);
    let below = (1..near.min(whole + 1)).rev().find(divides).unwrap_or(0);
    let above = (near + 1..=whole).find(divides).unwrap_or(0);
    either(below, above)
}

/// `8 or 12`, where 0 is none.
fn either(below: usize, above: usize) -> String {
    match (below, above) {
        (0, above) => above.to_string(),
        (below, 0) => below.to_string(),
        (below, above) => format!("{below} or {above}"),
    }
}
