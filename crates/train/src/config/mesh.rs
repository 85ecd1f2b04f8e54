//! Builds the device mesh from the parallel keys, or refuses it with the nearest splits that fit. No I/O.

use super::Config;
use super::suggest::{Candidates, Infeasible, Suggestion};
use regatta_model::units::pluralize;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::ScheduleKind;

/// Assumed vocabulary size before the data is known: never a limit for tp.
const UNKNOWN_VOCAB_SIZE: usize = 1 << 20;

/// The axes that split a model.
const MODEL_AXES: [&str; 3] = ["parallel.tp", "parallel.cp", "parallel.pp"];

impl Config {
    /// The mesh of a number of ranks.
    pub(super) fn mesh(&self, ranks: usize) -> Result<Mesh, Infeasible> {
        let [tp, cp, pp] = self.model_axes();
        let model = tp.saturating_mul(cp).saturating_mul(pp);
        match self.parallel.dp {
            _ if ranks == 0 => Err(Infeasible::new("there are no ranks")),
            _ if !ranks.is_multiple_of(model) => Err(self.indivisible_ranks(ranks, model)),
            dp if dp != 0 && dp != ranks / model => {
                let with = match self.model_axes_text() {
                    axes if axes.is_empty() => axes,
                    axes => format!(" with {axes}"),
                };
                let ranks = pluralize(ranks, "rank");
                Err(Infeasible::new(format!("parallel.dp {dp} does not match {ranks}{with}"))
                    .suggest_key("parallel.dp", Candidates::Only(0))
                    .suggest(Suggestion::Ranks(Candidates::Only(dp.saturating_mul(model)))))
            }
            _ => {
                self.check_tensor_parallel(tp)?;
                self.check_context_parallel(cp)?;
                self.check_pipeline(pp)?;
                let dp = ranks / model;
                Ok(Mesh { dp, cp, tp, pp, shard: self.shard_group(dp * cp)? })
            }
        }
    }

    fn model_axes(&self) -> [usize; 3] {
        let parallel = &self.parallel;
        [parallel.tp, parallel.cp, parallel.pp]
    }

    /// The axes larger than 1, as `parallel.tp 2 x parallel.pp 2`.
    fn model_axes_text(&self) -> String {
        let all = MODEL_AXES.into_iter().zip(self.model_axes());
        let axis = |(name, size): (&str, usize)| (size > 1).then(|| format!("{name} {size}"));
        all.filter_map(axis).collect::<Vec<_>>().join(" x ")
    }

    fn indivisible_ranks(&self, ranks: usize, model: usize) -> Infeasible {
        let product = match self.model_axes_text() {
            axes if axes.contains(" x ") => format!("{axes} = {model}"),
            axes => axes,
        };
        let are = if ranks == 1 { "is" } else { "are" };
        let ranks_are = format!("{} {are}", pluralize(ranks, "rank"));
        let reason = format!("{ranks_are} not divisible by {product}");
        let multiples = Candidates::Multiples { of: model, near: ranks };
        Infeasible::new(reason).suggest(Suggestion::Ranks(multiples)).suggest(Suggestion::Split)
    }

    /// Splits of a number of ranks over the axes larger than 1, nearest to the configured one first.
    pub(super) fn splits_by_distance(&self, ranks: usize) -> Vec<[usize; 3]> {
        let (all, configured) = (divisors(ranks), self.model_axes());
        let [tps, cps, pps] = configured.map(|configured| {
            let is_allowed = |size: &&usize| configured > 1 || **size == 1;
            all.iter().filter(is_allowed).copied().collect::<Vec<_>>()
        });
        let mut splits = Vec::new();
        for &tp in &tps {
            for &cp in &cps {
                let rest = pps.iter().filter(|pp| ranks.is_multiple_of(tp * cp * **pp));
                splits.extend(rest.map(|&pp| [tp, cp, pp]));
            }
        }
        splits.sort_by(|a, b| distance(configured, *a).total_cmp(&distance(configured, *b)));
        splits
    }

    /// The keys of a split: the axes larger than 1, and dp if it is set or larger than 1.
    pub(super) fn split_keys(
        &self,
        split: [usize; 3],
        ranks: usize,
    ) -> Vec<(&'static str, String)> {
        let axes = MODEL_AXES.into_iter().zip(self.model_axes()).zip(split);
        let used = axes.filter(|((_, configured), _)| *configured > 1);
        let mut keys: Vec<_> = used.map(|((name, _), size)| (name, size.to_string())).collect();
        let dp = ranks / split.iter().product::<usize>();
        keys.extend((self.parallel.dp != 0 || dp > 1).then(|| ("parallel.dp", dp.to_string())));
        keys
    }

    fn check_tensor_parallel(&self, tp: usize) -> Result<(), Infeasible> {
        if tp == 1 {
            return Ok(());
        }
        let vocab_size = match self.model.vocab_size {
            0 => UNKNOWN_VOCAB_SIZE,
            given => given,
        };
        let shape = self.shape(vocab_size).map_err(|error| Infeasible::new(error.to_string()))?;
        shape.check_tensor_parallel(tp).map_err(|reason| {
            let axis = Suggestion::Axis("parallel.tp", tp);
            Infeasible::new(reason).suggest(Suggestion::Split).suggest(axis)
        })
    }

    /// Each rank holds one chunk of either half of a sequence, to balance causal attention.
    fn check_context_parallel(&self, cp: usize) -> Result<(), Infeasible> {
        let seq_len = self.model.seq_len;
        if cp == 1 || seq_len.is_multiple_of(2 * cp) {
            return Ok(());
        }
        let (chunks, near) = (2 * cp, seq_len);
        Err(Infeasible::new(format!(
            "model.seq_len {seq_len} is not divisible by {chunks} (2 x parallel.cp {cp})"
        ))
        .suggest_key("model.seq_len", Candidates::Multiples { of: chunks, near }))
    }

    fn check_pipeline(&self, pp: usize) -> Result<(), Infeasible> {
        let (layers, virtual_stages) = (self.model.num_layers, self.parallel.virtual_stages);
        let is_interleaved = self.parallel.schedule == ScheduleKind::Interleaved;
        match virtual_stages {
            2.. if pp == 1 => Err(self.no_pipeline(virtual_stages)),
            // A schedule has no effect with one stage: see `notes`.
            1 if pp == 1 => Ok(()),
            1 if is_interleaved => Err(Infeasible::new(
                "parallel.schedule interleaved needs parallel.virtual_stages > 1",
            )
            .suggest_key("parallel.virtual_stages", Candidates::ABOVE_ONE)
            .suggest(reset_pipeline(true, false))),
            2.. if !is_interleaved => Err(Infeasible::new(format!(
                "parallel.virtual_stages {virtual_stages} needs parallel.schedule interleaved"
            ))
            .suggest_set("parallel.schedule", ScheduleKind::Interleaved.name())
            .suggest(reset_pipeline(false, true))),
            _ if layers < pp.saturating_mul(virtual_stages) => Err(self.too_few_layers(pp)),
            _ => Ok(()),
        }
    }

    fn no_pipeline(&self, virtual_stages: usize) -> Infeasible {
        let is_default = self.parallel.schedule == ScheduleKind::default();
        Infeasible::new(format!("parallel.virtual_stages {virtual_stages} needs parallel.pp > 1"))
            .suggest_key("parallel.pp", Candidates::ABOVE_ONE)
            .suggest(reset_pipeline(!is_default, true))
    }

    fn too_few_layers(&self, pp: usize) -> Infeasible {
        let (layers, virtual_stages) = (self.model.num_layers, self.parallel.virtual_stages);
        let each = match virtual_stages {
            1 => String::new(),
            several => format!(" x parallel.virtual_stages {several}"),
        };
        Infeasible::new(format!("parallel.pp {pp}{each} exceeds model.num_layers {layers}"))
            .suggest(Suggestion::Split)
            .suggest(Suggestion::Axis("parallel.pp", pp))
    }

    /// Ranks per ZeRO shard group, of `replicas` ranks with the same parameters.
    fn shard_group(&self, replicas: usize) -> Result<usize, Infeasible> {
        match self.parallel.hsdp_shard {
            0 => Ok(replicas),
            shard if self.parallel.zero == 0 => Err(Infeasible::new(format!(
                "parallel.hsdp_shard {shard} has no effect with parallel.zero 0"
            ))
            .suggest_key("parallel.zero", Candidates::Only(1))
            .suggest_set("parallel.hsdp_shard", "0")),
            shard if !replicas.is_multiple_of(shard) => {
                let near = Candidates::Divisors { of: replicas, near: shard, times: 1 };
                Err(Infeasible::new(format!(
                    "parallel.hsdp_shard {shard} does not divide parallel.dp x parallel.cp = {replicas}"
                ))
                .suggest_key("parallel.hsdp_shard", near))
            }
            shard => Ok(shard),
        }
    }

    /// Whether sequence parallelism is on. It divides sequences rather than micro-batches, because the
    /// last micro-batch of an evaluation may have any size.
    pub(super) fn sequence_parallel(&self, mesh: &Mesh) -> Result<bool, Infeasible> {
        let (tokens, tp) = (self.model.seq_len / mesh.cp, mesh.tp);
        let is_divisible = tokens.is_multiple_of(tp);
        let configured = self.parallel.sequence_parallel;
        let key = "parallel.sequence_parallel";
        if configured == Some(true) && tp == 1 {
            return Err(Infeasible::new(format!("{key} true needs parallel.tp > 1"))
                .suggest_key("parallel.tp", Candidates::ABOVE_ONE)
                .suggest_set(key, "auto"));
        }
        if configured == Some(true) && !is_divisible {
            let unit = if mesh.cp > 1 { 2 * mesh.cp * tp } else { tp };
            let near = Candidates::Multiples { of: unit, near: self.model.seq_len };
            return Err(Infeasible::new(format!(
                "{key} true: the {tokens} tokens per rank (model.seq_len / \
                 parallel.cp) are not divisible by parallel.tp {tp}"
            ))
            .suggest_key("model.seq_len", near)
            .suggest_set(key, "false"));
        }
        Ok(configured.unwrap_or(is_divisible) && tp > 1)
    }
}

/// Resets the pipeline schedule and virtual stages to their defaults.
fn reset_pipeline(schedule: bool, virtual_stages: bool) -> Suggestion {
    let schedule = schedule.then(|| ("parallel.schedule", ScheduleKind::default().to_string()));
    let stages = virtual_stages.then(|| ("parallel.virtual_stages", "1".to_owned()));
    Suggestion::Set(schedule.into_iter().chain(stages).collect())
}

/// Distance between splits by factors: twice as many is as far as half as many.
fn distance(from: [usize; 3], to: [usize; 3]) -> f64 {
    let axis = |(from, to): (usize, usize)| (to as f64 / from as f64).ln().abs();
    from.into_iter().zip(to).map(axis).sum()
}

/// All divisors of a number, in ascending order.
pub(super) fn divisors(number: usize) -> Vec<usize> {
    let small = (1..).take_while(|n| n * n <= number).filter(|n| number.is_multiple_of(*n));
    let mut all: Vec<usize> = small.flat_map(|n| [n, number / n]).collect();
    all.sort_unstable();
    all.dedup();
    all
}
