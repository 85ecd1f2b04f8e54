//! How ranks are laid out: the splits that were asked for become a mesh, or are refused with the
//! nearest that work. No I/O.

use super::advice::{Help, Misfit, Numbers};
use super::{Config, Switch};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Kind as Pipeline;
use regatta_predict::shape::Shape;

/// More kinds of tokens than any model has ranks, where the data's are not known yet.
const MANY: usize = 1 << 20;

impl Config {
    /// The mesh of so many ranks.
    pub(super) fn mesh(&self, ranks: usize) -> Result<Mesh, Misfit> {
        let [tp, cp, pp] = self.model_axes();
        let model = tp.saturating_mul(cp).saturating_mul(pp);
        match self.parallel.dp {
            _ if ranks == 0 => Err(Misfit::new("there is no rank".to_owned())),
            _ if !ranks.is_multiple_of(model) => Err(self.no_product(ranks, model)),
            dp if dp != 0 && dp != ranks / model => Err(Misfit::new(format!(
                "parallel.dp is {dp}, and there are {ranks} ranks{}",
                with(&self.asked(" x "))
            ))
            .or(Help::Key("parallel.dp", Numbers::Only(0)))
            .or(Help::Ranks(Numbers::Only(dp.saturating_mul(model))))),
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
        let all = AXES.into_iter().zip(self.model_axes());
        let word = |(name, size): (&str, usize)| (size > 1).then(|| format!("{name} {size}"));
        all.filter_map(word).collect::<Vec<_>>().join(between)
    }

    /// These splits do not fit so many ranks.
    fn no_product(&self, ranks: usize, model: usize) -> Misfit {
        let several = self.model_axes().iter().filter(|size| **size > 1).count() > 1;
        let verb = if several { "do" } else { "does" };
        let why = format!("{} {verb} not divide {ranks} ranks", self.asked(" x "));
        let start = Help::Ranks(Numbers::Multiples { of: model, near: ranks });
        Misfit::new(why).or(Help::Split).or(start)
    }

    /// Splits of so many ranks, those nearest to the one asked for first. What is not split stays so.
    pub(super) fn splits_by_farness(&self, ranks: usize) -> Vec<[usize; 3]> {
        let (all, asked) = (divisors(ranks), self.model_axes());
        let [tps, cps, pps] = asked.map(|asked| {
            let may = |size: &&usize| asked > 1 || **size == 1;
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
        splits
    }

    /// The keys of a split: the axes that were asked for, and what is left.
    pub(super) fn split_words(
        &self,
        split: [usize; 3],
        ranks: usize,
    ) -> Vec<(&'static str, String)> {
        let axes = AXES.into_iter().zip(self.model_axes()).zip(split);
        let asked = axes.filter(|((_, asked), _)| *asked > 1);
        let mut words: Vec<_> = asked.map(|((name, _), size)| (name, size.to_string())).collect();
        words.push(("parallel.dp", (ranks / split.iter().product::<usize>()).to_string()));
        words
    }

    /// The model, as far as it is known without the data.
    fn known_shape(&self) -> Result<Shape, Misfit> {
        let vocabulary = if self.model.vocabulary == 0 { MANY } else { self.model.vocabulary };
        self.shape(vocabulary).map_err(|error| Misfit::new(error.to_string()))
    }

    fn check_tensor(&self, tp: usize) -> Result<(), Misfit> {
        if tp == 1 {
            return Ok(());
        }
        let other = |why| Misfit::new(why).or(Help::Split).or(Help::Axis("parallel.tp", tp));
        self.known_shape()?.check_tensor(tp).map_err(other)
    }

    /// Each rank has a piece of either half of a sequence, so that all have as much to look back at.
    fn check_context(&self, cp: usize) -> Result<(), Misfit> {
        let context = self.model.context;
        if cp == 1 || context.is_multiple_of(2 * cp) {
            return Ok(());
        }
        Err(Misfit::new(format!(
            "model.context {context} does not divide into two pieces for each of parallel.cp {cp}"
        ))
        .or(Help::Key("model.context", Numbers::Multiples { of: 2 * cp, near: context })))
    }

    fn check_pipeline(&self, pp: usize) -> Result<(), Misfit> {
        let (layers, chunks) = (self.model.layers, self.parallel.chunks);
        let schedule = self.parallel.schedule;
        let several = schedule == Pipeline::Interleaved;
        match chunks {
            2.. if pp == 1 => Err(self.no_pipeline(format!(
                "parallel.chunks {chunks} are of pipeline stages, and parallel.pp is 1"
            ))),
            // An order of stages of which there is one does nothing: see `notes`.
            1 if pp == 1 => Ok(()),
            1 if several => Err(Misfit::new(
                "parallel.schedule interleaved needs several chunks a stage".to_owned(),
            )
            .or(Help::Key("parallel.chunks", Numbers::Multiples { of: 1, near: 1 }))
            .or(usual(true, false))),
            2.. if !several => Err(Misfit::new(format!(
                "parallel.chunks {chunks} are for parallel.schedule interleaved"
            ))
            .or(Help::Words(vec![("parallel.schedule", Pipeline::Interleaved.to_string())]))
            .or(usual(false, true))),
            _ if layers < pp.saturating_mul(chunks) => Err(self.few_layers(pp)),
            _ => Ok(()),
        }
    }

    /// Something is told about stages, of which there is one.
    fn no_pipeline(&self, why: String) -> Misfit {
        let (schedule, chunks) = (self.parallel.schedule, self.parallel.chunks);
        Misfit::new(why)
            .or(Help::Key("parallel.pp", Numbers::Multiples { of: 1, near: 1 }))
            .or(usual(schedule != Pipeline::default(), chunks > 1))
    }

    /// There are more chunks of stages than layers.
    fn few_layers(&self, pp: usize) -> Misfit {
        let (layers, chunks) = (self.model.layers, self.parallel.chunks);
        let each = if chunks > 1 { format!(" x parallel.chunks {chunks}") } else { String::new() };
        Misfit::new(format!("parallel.pp {pp}{each} is more than model.layers {layers}"))
            .or(Help::Split)
            .or(Help::Axis("parallel.pp", pp))
    }

    /// Ranks that share sharded state, of so many with the same parameters.
    fn shard(&self, data: usize) -> Result<usize, Misfit> {
        match self.parallel.shard {
            0 => Ok(data),
            shard if self.parallel.zero == 0 => Err(Misfit::new(format!(
                "parallel.shard {shard} says how many ranks share state, and parallel.zero 0 that \
                 none is shared"
            ))
            .or(Help::Key("parallel.zero", Numbers::Only(1)))
            .or(Help::Words(vec![("parallel.shard", "0".to_owned())]))),
            shard if !data.is_multiple_of(shard) => {
                let near = Numbers::Divisors { of: data, near: shard, times: 1 };
                Err(Misfit::new(format!(
                    "parallel.shard {shard} does not divide the {data} ranks with the same \
                     parameters (parallel.dp x parallel.cp)"
                ))
                .or(Help::Key("parallel.shard", near)))
            }
            shard => Ok(shard),
        }
    }

    /// Whether tensor-parallel ranks share the tokens. By the sequence, not by the micro-batch: the
    /// last one of a validation may have any number of sequences.
    pub(super) fn sequence(&self, mesh: &Mesh) -> Result<bool, Misfit> {
        let (tokens, tp) = (self.model.context / mesh.cp, mesh.tp);
        let divides = tokens.is_multiple_of(tp);
        let asked = self.parallel.sequence;
        if asked == Switch::On && tp == 1 {
            return Err(Misfit::new(
                "parallel.sequence true has tensor-parallel ranks share the tokens, and parallel.tp \
                 is 1"
                    .to_owned(),
            )
            .or(Help::Key("parallel.tp", Numbers::Multiples { of: 1, near: 1 }))
            .or(Help::Words(vec![("parallel.sequence", "auto".to_owned())])));
        }
        if asked == Switch::On && !divides {
            let unit = if mesh.cp > 1 { 2 * mesh.cp * tp } else { tp };
            let near = Numbers::Multiples { of: unit, near: self.model.context };
            return Err(Misfit::new(format!(
                "parallel.sequence true: the {tokens} tokens that a rank has of a sequence \
                 (model.context / parallel.cp) do not divide among parallel.tp {tp}"
            ))
            .or(Help::Key("model.context", near))
            .or(Help::Words(vec![("parallel.sequence", "false".to_owned())])));
        }
        Ok(asked.or(divides) && tp > 1)
    }
}

/// The axes that share a model.
const AXES: [&str; 3] = ["parallel.tp", "parallel.cp", "parallel.pp"];

/// The usual schedule, and as many chunks as it has, where they are others.
fn usual(schedule: bool, chunks: bool) -> Help {
    let schedule = schedule.then(|| ("parallel.schedule", Pipeline::default().to_string()));
    let chunks = chunks.then(|| ("parallel.chunks", "1".to_owned()));
    Help::Words(schedule.into_iter().chain(chunks).collect())
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

/// All numbers that divide another, in order.
pub(super) fn divisors(whole: usize) -> Vec<usize> {
    let small = (1..).take_while(|n| n * n <= whole).filter(|n| whole.is_multiple_of(*n));
    let mut all: Vec<usize> = small.flat_map(|n| [n, whole / n]).collect();
    all.sort_unstable();
    all.dedup();
    all
}
