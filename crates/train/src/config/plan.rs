//! What a configuration means for a number of ranks. Whatever does not fit together is refused
//! here, with numbers that would. No I/O.

use super::advice::{Help, Misfit, Numbers};
use super::split::divisors;
use super::{Config, ConfigError, Memory};
use crate::schedule::Schedule;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Kind as Pipeline;
use regatta_predict::plan::{OnDisk, ParallelPlan};
use regatta_predict::shape::{Family, Shape};

impl Config {
    /// The model, for data with so many kinds of tokens.
    pub fn shape(&self, vocabulary: usize) -> Result<Shape, ConfigError> {
        let model = &self.model;
        if model.vocabulary != 0 && model.vocabulary < vocabulary {
            return Err(ConfigError::Contradiction(format!(
                "model.vocabulary {} is less than the {vocabulary} kinds of tokens of the data: \
                 leave it 0",
                model.vocabulary
            )));
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

    /// How so many ranks share the model and a step.
    pub fn validate(&self, ranks: usize) -> Result<ParallelPlan, ConfigError> {
        let told = |misfit: Misfit| ConfigError::Contradiction(misfit.sentence(self, ranks));
        self.fit(ranks).map_err(told)
    }

    /// The same for data with so many kinds of tokens, of which each tensor-parallel rank needs some,
    /// and the model.
    pub fn planned(
        &self,
        ranks: usize,
        vocabulary: usize,
    ) -> Result<(ParallelPlan, Shape), ConfigError> {
        let shape = self.shape(vocabulary)?;
        let mut known = self.clone();
        known.model.vocabulary = shape.vocabulary;
        Ok((known.validate(ranks)?, shape))
    }

    /// As [`Config::validate`], without a word about what would fit better.
    pub(super) fn fit(&self, ranks: usize) -> Result<ParallelPlan, Misfit> {
        self.check_rates()?;
        let mesh = self.mesh(ranks)?;
        let share = self.share(&mesh)?;
        let micro_batch = self.micro_batch(share, &mesh)?;
        Ok(ParallelPlan {
            mesh,
            zero: self.parallel.zero,
            sequence: self.sequence(&mesh)?,
            schedule: self.parallel.schedule,
            chunks: self.parallel.chunks,
            batch: share * mesh.dp,
            share,
            micro_batch,
            accumulation: share / micro_batch,
            tiles: self.parallel.tiles,
            on_disk: OnDisk {
                moments: self.offload.optimizer == Memory::Disk,
                parameters: self.offload.parameters == Memory::Disk,
            },
        })
    }

    /// The learning rate of each step, for so many copies of the model.
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

    fn check_rates(&self) -> Result<(), Misfit> {
        let Schedule { rate, minimum, warmup, decay, .. } = self.schedule(1);
        if minimum > rate {
            return Err(Misfit::new(format!(
                "optimizer.minimum_rate {minimum:?} is above optimizer.rate {rate:?}: a tenth, \
                 {:.1e}, is usual",
                rate / 10.0
            )));
        }
        // A run that ends while the rate still rises is a short trial, and fine.
        if self.optimizer.decay_steps != 0 && warmup > decay {
            let usual = Numbers::Only(decay as usize / 10);
            return Err(Misfit::new(format!(
                "optimizer.warmup {warmup} is longer than optimizer.decay_steps {decay}"
            ))
            .or(Help::Key("optimizer.warmup", usual)));
        }
        Ok(())
    }

    /// Sequences of a step for each copy of the model.
    fn share(&self, mesh: &Mesh) -> Result<usize, Misfit> {
        let (batch, each, dp) = (self.train.batch, self.train.batch_per_rank, mesh.dp);
        if batch == 0 && each == 0 {
            let why = "train.batch and train.batch_per_rank are 0: set one of them";
            return Err(Misfit::new(why.to_owned()));
        }
        if batch == 0 {
            return Ok(each);
        }
        if !batch.is_multiple_of(dp) {
            let times = mesh.ranks() / dp;
            let why = format!("train.batch {batch} does not divide among {}", copies(mesh));
            let misfit = Misfit::new(why)
                .or(Help::Key("train.batch", Numbers::Multiples { of: dp, near: batch }))
                .or(Help::Ranks(Numbers::Divisors { of: batch, near: dp, times }));
            return Err(Misfit { otherwise: "set train.batch_per_rank instead", ..misfit });
        }
        Ok(batch / dp)
    }

    /// Sequences that a copy of the model works on at once.
    fn micro_batch(&self, share: usize, mesh: &Mesh) -> Result<usize, Misfit> {
        let asked = self.train.micro_batch;
        if asked == 0 {
            return self.usual_micro_batch(share, mesh);
        }
        let other = Numbers::Divisors { of: share, near: asked, times: 1 };
        let other = Help::Key("train.micro_batch", other);
        if !share.is_multiple_of(asked) {
            let whole = match self.train.batch {
                0 => "train.batch_per_rank".to_owned(),
                batch => format!("train.batch {batch} over {}", copies(mesh)),
            };
            return Err(Misfit::new(format!(
                "train.micro_batch {asked} does not divide a rank's {share} sequences ({whole})"
            ))
            .or(other));
        }
        if self.fills(share / asked, mesh.pp) {
            return Ok(asked);
        }
        if !divisors(share).into_iter().any(|size| self.fills(share / size, mesh.pp)) {
            return Err(self.too_few(share, mesh));
        }
        Err(Misfit::new(format!(
            "train.micro_batch {asked} makes {} of a step's {share} sequences, and parallel.pp {} \
             with parallel.schedule {} needs {}",
            counted(share / asked, "micro-batch", "micro-batches"),
            mesh.pp,
            self.parallel.schedule,
            self.needed(mesh.pp)
        ))
        .or(other))
    }

    /// All at once; in a pipeline the largest that leaves two micro-batches for each stage, so that
    /// stages wait less than they work, or if there are not so many sequences the smallest.
    fn usual_micro_batch(&self, share: usize, mesh: &Mesh) -> Result<usize, Misfit> {
        if mesh.pp == 1 {
            return Ok(share);
        }
        let sizes = divisors(share);
        let mut fit = sizes.iter().copied().filter(|size| self.fills(share / size, mesh.pp));
        let plenty = |size: &usize| share / size >= 2 * mesh.pp;
        match fit.clone().rfind(plenty).or_else(|| fit.next()) {
            Some(size) => Ok(size),
            None => Err(self.too_few(share, mesh)),
        }
    }

    /// Whether so many micro-batches keep so many pipeline stages at work.
    fn fills(&self, micros: usize, pp: usize) -> bool {
        let in_turn = self.parallel.schedule == Pipeline::Interleaved;
        pp == 1 || micros >= pp && (!in_turn || micros.is_multiple_of(pp))
    }

    fn needed(&self, pp: usize) -> String {
        match self.parallel.schedule {
            Pipeline::Interleaved => format!("a multiple of {pp}"),
            _ => format!("at least {pp}"),
        }
    }

    fn too_few(&self, share: usize, mesh: &Mesh) -> Misfit {
        let (key, times) = match self.train.batch {
            0 => ("train.batch_per_rank", 1),
            _ => ("train.batch", mesh.dp),
        };
        let near = Numbers::Multiples { of: mesh.pp * times, near: share * times };
        Misfit::new(format!(
            "parallel.pp {} with parallel.schedule {} needs {} micro-batches a step, and a copy of \
             the model has {}",
            mesh.pp,
            self.parallel.schedule,
            self.needed(mesh.pp),
            counted(share, "sequence", "sequences")
        ))
        .or(Help::Key(key, near))
    }
}

/// Who shares a batch.
fn copies(mesh: &Mesh) -> String {
    match mesh.ranks() {
        ranks if ranks == mesh.dp => format!("{ranks} ranks"),
        ranks => format!("{} of the model on {ranks} ranks", counted(mesh.dp, "copy", "copies")),
    }
}

/// `1 sequence`, `2 sequences`.
fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
