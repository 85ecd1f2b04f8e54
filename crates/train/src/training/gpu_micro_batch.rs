//! The micro-batch size of `train.micro_batch=auto` on GPUs: the largest one whose predicted memory fits on
//! the GPU of every rank.

use std::path::Path;

use regatta_comm::{Collectives, Comm, ReduceOp};

use super::error::Result;
use crate::checkpoint::manifest::MICRO_BATCH;
use crate::checkpoint::newest_meta;
use crate::config::{Config, ConfigError, DeviceKind, MicroBatchSize, Resume};
use crate::run_paths;
use regatta_predict::cost::{rank_cost, rank_costs};

/// Memory that the libraries of a GPU use besides tensors: code, workspaces, communication buffers.
pub const LIBRARY_BYTES: u64 = 2 << 30;

/// The GPU of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankGpu {
    /// Free memory in bytes.
    pub free: u64,
    /// The ranks that use it, including this one.
    pub ranks: Vec<u32>,
}

impl RankGpu {
    /// Bytes that all ranks on this GPU need together. `own` is what this rank needs, in each of several
    /// cases, the same on all ranks.
    fn totals(&self, own: &[u64], comm: &dyn Comm) -> Result<Vec<u64>> {
        let own: Vec<i64> = own.iter().map(|bytes| bytes.cast_signed()).collect();
        let mut all = vec![0; own.len() * comm.size() as usize];
        comm.all_gather(&own, &mut all)?;
        let need = |rank: u32, case: usize| all[rank as usize * own.len() + case].cast_unsigned();
        let total =
            |case| self.ranks.iter().map(|rank| need(*rank, case)).fold(0, u64::saturating_add);
        Ok((0..own.len()).map(total).collect())
    }

    /// Bytes that all ranks on this GPU are predicted to need together.
    pub fn predicted_need(
        &self,
        config: &Config,
        vocab_size: usize,
        comm: &dyn Comm,
    ) -> Result<u64> {
        let own = predicted_need(config, vocab_size, comm)?;
        Ok(self.totals(&[own], comm)?.into_iter().sum())
    }
}

/// Device memory that this rank is predicted to need, in bytes.
fn predicted_need(config: &Config, vocab_size: usize, comm: &dyn Comm) -> Result<u64> {
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let (plan, shape) = config.validate_with_vocab(ranks, vocab_size)?;
    let cost = rank_cost(&shape, &plan, config.cost_options(), rank)
        .map_err(|error| ConfigError::Inconsistent(error.to_string()))?;
    Ok(cost.memory.total().saturating_add(LIBRARY_BYTES))
}

/// Device memory that the rank with the largest need is predicted to need, in bytes.
fn largest_need(config: &Config, ranks: usize, vocab_size: usize) -> Result<u64> {
    let (plan, shape) = config.validate_with_vocab(ranks, vocab_size)?;
    let costs = rank_costs(&shape, &plan, config.cost_options())
        .map_err(|error| ConfigError::Inconsistent(error.to_string()))?;
    let largest = costs.classes.iter().map(|cost| cost.memory.total()).max();
    Ok(largest.unwrap_or(0).saturating_add(LIBRARY_BYTES))
}

/// Whether a micro-batch size fits in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// The memory check would refuse it.
    Exceeds,
    /// Without the margin of [`Fit::WithMargin`].
    Fits,
    /// In 90 % of the free memory: the prediction has no allocator overhead.
    WithMargin,
}

impl Fit {
    const ALL: [Self; 3] = [Self::Exceeds, Self::Fits, Self::WithMargin];

    fn new(need: u64, free: u64) -> Self {
        match need {
            _ if need <= free / 10 * 9 => Self::WithMargin,
            _ if need <= free => Self::Fits,
            _ => Self::Exceeds,
        }
    }
}

/// The micro-batch size, of sizes in ascending order: that of the run so far if it fits, otherwise the
/// largest that fits with a margin, otherwise the smallest. `None` without sizes.
fn choose(sizes: &[(usize, Fit)], of_run: Option<usize>) -> Option<usize> {
    let is_kept = |(size, fit): &&(usize, Fit)| Some(*size) == of_run && *fit >= Fit::Fits;
    let kept = sizes.iter().find(is_kept);
    let largest = sizes.iter().rfind(|(_, fit)| *fit == Fit::WithMargin);
    kept.or(largest).or(sizes.first()).map(|(size, _)| *size)
}

/// Chooses the micro-batch size of a run on GPUs if it is `auto`, the same on all ranks. A run that is
/// resumed keeps its size if it fits, because sums of gradients round differently with another one; a
/// note says if it does not.
pub fn resolve(
    config: &mut Config,
    vocab_size: usize,
    gpu: &RankGpu,
    run_folder: &Path,
    comm: &dyn Comm,
) -> Result<Option<String>> {
    if !is_open(config) {
        return Ok(None);
    }
    let sizes = gpu_micro_batches(config, comm.size() as usize, vocab_size)?;
    let with_size = |size| with_size(config, size);
    let needs = sizes.iter().map(|size| predicted_need(&with_size(*size), vocab_size, comm));
    let totals = gpu.totals(&needs.collect::<Result<Vec<u64>>>()?, comm)?;
    let fits = totals.into_iter().map(|total| Fit::new(total, gpu.free) as i32);
    let mut fits: Vec<i32> = fits.collect();
    comm.all_reduce(&mut fits, ReduceOp::Min)?;
    let fits = fits.into_iter().map(|fit| Fit::ALL[fit.clamp(0, 2) as usize]);
    let sizes: Vec<(usize, Fit)> = sizes.into_iter().zip(fits).collect();
    let of_run = size_of_run(config, run_folder, comm)?;
    let Some(size) = choose(&sizes, of_run) else { return Ok(None) };
    *config = with_size(size);
    Ok(of_run.filter(|of_run| *of_run != size).map(|of_run| {
        format!(
            "micro-batch {size} instead of {of_run}, with which the run began: it does not fit in the \
             memory of these GPUs, or does not divide the batch of a replica; losses differ by rounding"
        )
    }))
}

/// Chooses the micro-batch size of a planned run if it is `auto`, on GPUs with this much memory. Without it,
/// the largest size, and a note says so.
pub fn resolve_planned(
    config: &mut Config,
    ranks: usize,
    vocab_size: usize,
    gpu_bytes: Option<u64>,
) -> Result<Option<String>> {
    if !is_open(config) {
        return Ok(None);
    }
    let fit = |size: usize| {
        let fit = match gpu_bytes {
            Some(free) => {
                Fit::new(largest_need(&with_size(config, size), ranks, vocab_size)?, free)
            }
            None => Fit::WithMargin,
        };
        Ok((size, fit))
    };
    let sizes = gpu_micro_batches(config, ranks, vocab_size)?;
    let sizes = sizes.into_iter().map(fit).collect::<Result<Vec<_>>>()?;
    if let Some(size) = choose(&sizes, None) {
        *config = with_size(config, size);
    }
    Ok(gpu_bytes.is_none().then(|| {
        "the memory of the GPUs is not known here: the run may choose a smaller micro-batch"
            .to_owned()
    }))
}

/// Whether the size is `auto` and a GPU trains.
fn is_open(config: &Config) -> bool {
    config.train.device == Some(DeviceKind::Gpu) && config.train.micro_batch == MicroBatchSize::Auto
}

fn with_size(config: &Config, size: usize) -> Config {
    let mut config = config.clone();
    config.train.micro_batch = MicroBatchSize::Chosen(size);
    config
}

/// The sizes to choose from, once the vocabulary size is known, which limits tp.
fn gpu_micro_batches(config: &Config, ranks: usize, vocab_size: usize) -> Result<Vec<usize>> {
    config.validate_with_vocab(ranks, vocab_size)?;
    Ok(config.gpu_micro_batches(ranks)?)
}

/// The size that the run so far was trained with, as its newest checkpoint says, on all ranks; `None` if no
/// run is resumed.
fn size_of_run(config: &Config, folder: &Path, comm: &dyn Comm) -> Result<Option<usize>> {
    let mut size = [0i64];
    if comm.rank() == 0 && config.checkpoint.resume == Resume::Auto {
        // A checkpoint that cannot be read is reported when the run is resumed.
        let meta = newest_meta(&run_paths::checkpoint_dir(config, folder));
        let text = meta.and_then(|meta| meta.extra.get(MICRO_BATCH).cloned());
        size[0] = text.and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    comm.broadcast(&mut size, 0)?;
    Ok(usize::try_from(size[0]).ok().filter(|size| *size > 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config;

    fn gpu_config(words: &str) -> Config {
        let words: Vec<&str> = words.split_whitespace().chain(["train.device=gpu"]).collect();
        config::load(&words).unwrap().config
    }

    /// The size that is chosen for a number of ranks, with this much memory.
    fn planned(words: &str, ranks: usize, gib: Option<u64>) -> (usize, Option<String>) {
        let mut config = gpu_config(words);
        let bytes = gib.map(|gib| gib << 30);
        let vocab_size = config.model.vocab_size.max(65);
        let note = resolve_planned(&mut config, ranks, vocab_size, bytes).unwrap();
        (config.validate(ranks).unwrap().micro_batch, note)
    }

    #[test]
    fn the_size_grows_with_the_memory_up_to_65536_tokens() {
        let sizes: Vec<usize> =
            [12, 24, 40, 80, 640].iter().map(|gib| planned("gpt2", 1, Some(*gib)).0).collect();
        assert!(sizes.is_sorted() && sizes[0] < sizes[2], "{sizes:?}");
        assert_eq!(*sizes.last().unwrap(), 64);
        // Nothing fits: the memory check has the last word.
        assert_eq!(planned("gpt2", 1, Some(1)).0, 1);
        // A replica has fewer sequences.
        assert_eq!(planned("gpt2", 32, Some(640)).0, 16);
        let (size, note) = planned("gpt2", 1, None);
        assert!(size == 64 && note.is_some_and(|note| note.contains("not known here")));
        // A single sequence is longer than the limit.
        assert_eq!(planned("gpt2 model.seq_len=131072 batch=4", 1, None).0, 1);
        // Ranks with a part of each sequence have fewer tokens.
        assert_eq!(planned("gpt2 cp=2", 2, None).0, 128);
    }

    #[test]
    fn pipelines_keep_their_micro_batches() {
        assert_eq!(planned("gpt2 pp=4", 4, None).0, 4);
        assert_eq!(planned("llama-1b pp=4", 4, None).0, 1);
        assert_eq!(planned("tiny family=gpt2 num_layers=4 batch=24 pp=4", 4, None).0, 3);
    }

    #[test]
    fn explicit_sizes_and_cpus_are_as_configured() {
        assert_eq!(planned("gpt2 micro_batch=8", 1, Some(1)), (8, None));
        let mut config = config::load(&["gpt2", "train.device=cpu"]).unwrap().config;
        assert_eq!(resolve_planned(&mut config, 1, 50_257, Some(1 << 40)).unwrap(), None);
        assert_eq!(config.validate(1).unwrap().micro_batch, 4);
    }

    #[test]
    fn the_size_of_the_run_is_kept_if_it_fits() {
        let sizes = [(1, Fit::WithMargin), (2, Fit::WithMargin), (4, Fit::Fits), (8, Fit::Exceeds)];
        let cases = [(None, 2), (Some(1), 1), (Some(4), 4), (Some(8), 2), (Some(3), 2)];
        for (of_run, expected) in cases {
            assert_eq!(choose(&sizes, of_run), Some(expected), "{of_run:?}");
        }
        assert_eq!(choose(&[], Some(1)), None);
    }

    proptest! {
        #[test]
        fn sizes_divide_the_batch_and_fill_the_pipeline(
            batch in 1usize..200, dp in 1usize..5, pp in 1usize..5, cp in 1usize..3,
            seq in 0usize..12, cpu in 1usize..9, gib in 2u64..200,
        ) {
            let words = format!(
                "family=gpt2 num_layers=4 num_heads=2 hidden_size=64 vocab_size=65 seq_len={} \
                 batch_per_replica={batch} parallel.dp={dp} pp={pp} cp={cp} cpu_micro_batch={cpu}",
                16 << seq
            );
            let (mut config, ranks) = (gpu_config(&words), dp * pp * cp);
            let Ok(on_cpus) = config.validate(ranks) else { return Ok(()) };
            resolve_planned(&mut config, ranks, 65, Some(gib << 30)).unwrap();
            let plan = config.validate(ranks).unwrap();
            prop_assert_eq!(plan.micro_batch * plan.micro_batches, batch);
            prop_assert!(pp == 1 || plan.micro_batches >= pp.max(on_cpus.micro_batches));
            prop_assert!(plan.micro_batch == 1 || plan.micro_batch * (16 << seq) / cp <= 65_536);
        }
    }
}
