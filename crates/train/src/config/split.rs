//! How ranks are laid out: the splits that were asked for become a mesh, or are refused with the
//! nearest that work. No I/O.

use super::plan::{either, nearest_divisors, wrong};
use super::{Config, ConfigError};
use crate::parallel::Mesh;
use crate::parallel::pipeline::Kind as Pipeline;
use crate::shape::Shape;

/// More kinds of tokens than any model has ranks, where the data's are not known yet.
const MANY: usize = 1 << 20;

impl Config {
    /// The mesh of so many ranks.
    pub(super) fn mesh(&self, ranks: usize) -> Result<Mesh, ConfigError> {
        let [tp, cp, pp] = self.model_axes();
        let model = tp.saturating_mul(cp).saturating_mul(pp);
        match self.parallel.dp {
            _ if ranks == 0 => wrong("there is no rank".to_owned()),
            _ if !ranks.is_multiple_of(model) => wrong(self.no_product(ranks, model)),
            dp if dp != 0 && dp != ranks / model => wrong(format!(
                "parallel.dp is {dp}, and there are {ranks} ranks{}: leave it 0 for {}, or start {}",
                with(&self.asked(" x ")),
                ranks / model,
                dp.saturating_mul(model),
            )),
            _ => {
                self.check_tensor(tp)?;
                self.check_context(cp)?;
                self.check_pipeline(pp)?;
                let dp = ranks / model;
                Ok(Mesh { dp, cp, tp, pp, shard: self.shard(dp * cp)? })
            }
        }
    }

    fn model_axes(&self) -> [usize; 3] {
        let parallel = &self.parallel;
        [parallel.tp, parallel.cp, parallel.pp]
    }

    /// The splits of the model that were asked for, as `parallel.tp 2 x parallel.pp 2`.
    fn asked(&self, between: &str) -> String {
        let all = ["tp", "cp", "pp"].into_iter().zip(self.model_axes());
        let word =
            |(name, size): (&str, usize)| (size > 1).then(|| format!("parallel.{name} {size}"));
        all.filter_map(word).collect::<Vec<_>>().join(between)
    }

    /// Why these splits do not fit so many ranks, and what would.
    fn no_product(&self, ranks: usize, model: usize) -> String {
        let several = self.model_axes().iter().filter(|size| **size > 1).count() > 1;
        let verb = if several { "do" } else { "does" };
        let near = self.nearest_splits(ranks);
        let would = if near.is_empty() {
            String::new()
        } else {
            format!("{} would, or ", near.join(" or "))
        };
        let start = either(ranks / model * model, ranks.next_multiple_of(model));
        format!("{} {verb} not divide {ranks} ranks: {would}start {start}", self.asked(" x "))
    }

    /// The two splits nearest to those asked for that this model and so many ranks can have, as
    /// `tp 2 pp 2 dp 2`. What is not split stays so.
    fn nearest_splits(&self, ranks: usize) -> Vec<String> {
        let all = divisors(ranks);
        let fits = |axis: usize, size: usize| match axis {
            0 => self.check_tensor(size).is_ok(),
            1 => self.check_context(size).is_ok(),
            _ => self.check_pipeline(size).is_ok(),
        };
        let asked = self.model_axes();
        let [tps, cps, pps] = [0, 1, 2].map(|axis| {
            let may =
                |size: &&usize| if asked[axis] == 1 { **size == 1 } else { fits(axis, **size) };
            all.iter().filter(may).copied().collect::<Vec<_>>()
        });
        let mut splits = Vec::new();
        for &tp in &tps {
            for &cp in &cps {
                let rest = pps.iter().filter(|pp| ranks.is_multiple_of(tp * cp * **pp));
                splits.extend(rest.map(|&pp| [tp, cp, pp]));
            }
        }
        splits.sort_by(|one, other| farness(asked, *one).total_cmp(&farness(asked, *other)));
        splits.truncate(2);
        splits.sort_unstable();
        splits.into_iter().map(|split| described(asked, split, ranks)).collect()
    }

    /// The model, as far as it is known without the data.
    fn known_shape(&self) -> Result<Shape, ConfigError> {
        self.shape(if self.model.vocabulary == 0 { MANY } else { self.model.vocabulary })
    }

    fn check_tensor(&self, tp: usize) -> Result<(), ConfigError> {
        match tp {
            1 => Ok(()),
            _ => self.known_shape()?.check_tensor(tp).map_err(ConfigError::Contradiction),
        }
    }

    /// Each rank has a piece of either half of a sequence, so that all have as much to look back at.
    fn check_context(&self, cp: usize) -> Result<(), ConfigError> {
        let context = self.model.context;
        if cp == 1 || context.is_multiple_of(2 * cp) {
            return Ok(());
        }
        let near = either(context / (2 * cp) * 2 * cp, context.next_multiple_of(2 * cp));
        wrong(format!(
            "model.context {context} does not divide into two pieces for each of parallel.cp {cp}: \
             set it to {near}"
        ))
    }

    fn check_pipeline(&self, pp: usize) -> Result<(), ConfigError> {
        let (layers, chunks) = (self.model.layers, self.parallel.chunks);
        let several = self.parallel.schedule == Pipeline::Interleaved;
        match chunks {
            1 if pp > 1 && several => wrong(
                "parallel.schedule interleaved needs several chunks a stage: set parallel.chunks to \
                 2, or the schedule to 1f1b"
                    .to_owned(),
            ),
            2.. if pp == 1 => wrong(format!(
                "parallel.chunks {chunks} are of pipeline stages, and parallel.pp is 1: set it to 2 \
                 or more, or chunks to 1"
            )),
            2.. if !several => wrong(format!(
                "parallel.chunks {chunks} are for parallel.schedule interleaved: set that, or chunks \
                 to 1"
            )),
            _ if layers < pp.saturating_mul(chunks) => {
                let each = if chunks > 1 { format!(" x parallel.chunks {chunks}") } else { String::new() };
                wrong(format!(
                    "parallel.pp {pp}{each} is more than model.layers {layers}: set it to {} or less",
                    (layers / chunks).max(1)
                ))
            }
            _ => Ok(()),
        }
    }

    /// Ranks that share sharded state, of so many with the same parameters.
    fn shard(&self, data: usize) -> Result<usize, ConfigError> {
        match self.parallel.shard {
            0 => Ok(data),
            shard if self.parallel.zero == 0 => wrong(format!(
                "parallel.shard {shard} says how many ranks share state, and parallel.zero 0 that \
                 none is shared: set that to 1, 2 or 3, or shard to 0"
            )),
            shard if !data.is_multiple_of(shard) => {
                let (below, above) = nearest_divisors(data, shard);
                wrong(format!(
                    "parallel.shard {shard} does not divide the {data} ranks with the same \
                     parameters (parallel.dp x parallel.cp): set it to {}",
                    either(below, above)
                ))
            }
            shard => Ok(shard),
        }
    }

    /// Whether tensor-parallel ranks share the tokens. By the sequence, not by the micro-batch: the
    /// last one of a validation may have any number of sequences.
    pub(super) fn sequence(&self, mesh: &Mesh) -> Result<bool, ConfigError> {
        let (tokens, tp) = (self.model.context / mesh.cp, mesh.tp);
        let divides = tokens.is_multiple_of(tp);
        let asked = self.parallel.sequence.or(divides);
        if asked && !divides {
            return wrong(format!(
                "parallel.sequence true: the {tokens} tokens that a rank has of a sequence \
                 (model.context / parallel.cp) do not divide among parallel.tp {tp}: set \
                 model.context to {}, or sequence to false",
                self.model.context.next_multiple_of(2 * mesh.cp * tp)
            ));
        }
        Ok(asked && tp > 1)
    }
}

/// ` with what was asked for`, if anything was.
fn with(asked: &str) -> String {
    if asked.is_empty() { String::new() } else { format!(" with {asked}") }
}

/// How far a split is from another: by factors, for twice as many is as far as half as many.
fn farness(asked: [usize; 3], split: [usize; 3]) -> f64 {
    let far = |(asked, size): (usize, usize)| (size as f64 / asked as f64).ln().abs();
    asked.into_iter().zip(split).map(far).sum()
}

/// `tp 2 pp 2 dp 2`: the axes that were asked for, and what is left.
fn described(asked: [usize; 3], split: [usize; 3], ranks: usize) -> String {
    let axes = ["tp", "cp", "pp"].into_iter().zip(asked).zip(split);
    let mut words: Vec<String> = axes
        .filter(|((_, asked), _)| *asked > 1)
        .map(|((name, _), size)| format!("{name} {size}"))
        .collect();
    words.push(format!("dp {}", ranks / split.iter().product::<usize>()));
    words.join(" ")
}

/// All numbers that divide another, in order.
pub(super) fn divisors(whole: usize) -> Vec<usize> {
    let small = (1..).take_while(|n| n * n <= whole).filter(|n| whole.is_multiple_of(*n));
    let mut all: Vec<usize> = small.flat_map(|n| [n, whole / n]).collect();
    all.sort_unstable();
    all.dedup();
    all
}
