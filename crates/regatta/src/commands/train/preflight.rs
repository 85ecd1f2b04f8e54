//! Checks before the ranks are launched. An error of the configuration, the data or the memory then
//! appears once, not on every rank.

use anyhow::{Context, Result};
use regatta_comm::bootstrap::host_name;
use regatta_launch::config::JobConfig;
use regatta_predict::cost::rank_cost;
use regatta_predict::layout::ParallelLayout;
use regatta_predict::shape::ModelShape;
use regatta_train::config::Config;
use regatta_train::data::{self, DataDirs, Sampler};

use super::rank::data_spec;
use crate::commands::compute_device;
use crate::system::memory_limits;
use regatta_launch::discovery::Discovery;

/// Checks the configuration as far as this process can: completely for ranks on this node, without
/// data and memory for ranks on others.
pub fn check(config: &Config, launch: &JobConfig, discovery: &Discovery) -> Result<()> {
    if discovery.needs_agents() || discovery.allocation.this_rank.is_some() {
        return check_without_data(config, launch);
    }
    let ranks = discovery.clone().plan(&launch.source, &launch.placement)?.placement.ranks as usize;
    config.validate(ranks)?;
    let (vocab_size, tokens) = measure_data(config)?;
    let (layout, shape) = config.validate_with_vocab(ranks, vocab_size)?;
    Sampler::shuffled(config.train.seed, tokens, config.model.seq_len as u64)
        .with_context(|| config.data.source.clone())?;
    let mut config = config.clone();
    compute_device::resolve_here(&mut config);
    match config.train.check_memory {
        true => check_memory(&config, &layout, &shape, ranks),
        false => Ok(()),
    }
}

/// Vocabulary size and training tokens of the data, which is closed again: tokens in memory would count
/// in the memory check.
pub fn measure_data(config: &Config) -> Result<(usize, u64)> {
    let dirs = DataDirs::of(|name| std::env::var_os(name));
    let dataset = data::open(&data_spec(config), &dirs)?;
    Ok((dataset.tokenizer.vocab_size(), dataset.train.len()))
}

/// Checks the model with any vocabulary size, and the number of ranks if it is given.
pub fn check_without_data(config: &Config, launch: &JobConfig) -> Result<()> {
    config.shape(1)?;
    let ranks = launch.placement.job.ranks;
    ranks.map_or(Ok(()), |ranks| config.validate(ranks as usize).map(drop))?;
    Ok(())
}

/// Checks that all ranks fit in the host memory of this node and of the cgroups of this process. Ranks check
/// the memory of their GPUs, which this process must not open before it forks.
fn check_memory(
    config: &Config,
    layout: &ParallelLayout,
    shape: &ModelShape,
    ranks: usize,
) -> Result<()> {
    let host = host_name();
    let limits = memory_limits(&host);
    let options = config.cost_options();
    let memory = |rank| Ok(rank_cost(shape, layout, options, rank)?.memory);
    let memory = (0..ranks).map(memory).collect::<Result<Vec<_>>>()?;
    let needs = memory.iter().map(|memory| config.memory_need(layout, memory));
    let entries: Vec<_> = needs.clone().map(|need| need.entry(&limits)).collect();
    Ok((0..)
        .zip(needs)
        .try_for_each(|(rank, need)| need.check((rank, &host), &limits, &entries))?)
}
