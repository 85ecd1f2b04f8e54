//! Start of a training run: checks that all ranks agree, then initialises or restores their state.

use std::path::{Path, PathBuf};

use regatta_comm::{Collectives, Comm, gather};
use sha2::{Digest, Sha256};

use super::checkpointing::{self, CheckpointManager, OwnedShards};
use super::error::{Result, TrainError};
use super::gpu_memory::GpuMemoryPeak;
use super::report::{self, Throughput};
use super::reservation::{max_tensors, reserve};
use super::usage::Usage;
use super::{TOKENIZER, TrainingLoop, TrainingSetup, resume};
use crate::checkpoint::manifest::{DATA, MICRO_BATCH, RUN, SPLIT};
use crate::checkpoint::{
    Checkpoint, CheckpointMeta, has_checkpoint, has_checkpoint_of_run, is_in_dir,
};
use crate::config::{self, Config, ConfigError, MicroBatchSize, Resume};
use crate::data::{DataError, DataLoader, Dataset, Sampler, Tokens};
use crate::metrics::{self, Event};
use crate::offload::OffloadTiers;
use crate::parallel::{ProcessGroups, ZeroStage};
use crate::run_paths;
use crate::state::{ParamInit, ShardingConfig};
use crate::step::{DeviceModel, Engine};
use regatta_model::run_folder::OFFLOADED;
use regatta_model::text::hex;
use regatta_predict::cost::rank_cost;
use regatta_predict::layout::ParallelLayout;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{Stage, StageError};
use regatta_predict::shape::ModelShape;

impl TrainingLoop {
    /// Initialises or restores the state of all ranks.
    pub(super) fn start(setup: TrainingSetup, emit: &mut dyn FnMut(Event)) -> Result<Self> {
        let (rank, ranks) = (setup.comm.rank() as usize, setup.comm.size() as usize);
        let (plan, shape) = plan(&setup)?;
        check_agreement(&setup)?;
        // Read also by a run that saves no checkpoints.
        let checkpoints = run_paths::checkpoint_dir(&setup.config, &setup.folder);
        let config::Checkpoint { interval, keep_last, .. } = setup.config.checkpoint;
        // First, to take the lock before anything of a run in use by another job changes.
        let mut manager = match interval {
            0 => None,
            _ => Some(CheckpointManager::new(&checkpoints, rank, ranks, keep_last)?),
        };
        if let Some(manager) = &mut manager {
            manager.in_background = setup.config.saves_in_background();
        }
        let found = resume::find_on_all_ranks(&setup, &checkpoints)?;
        if let Some(found) = &found {
            let TrainingSetup { config, dataset, .. } = &setup;
            let tokenizer = dataset.tokenizer.fingerprint();
            resume::check_compatible(&found.checkpoint, &shape, &tokenizer, config)?;
            if config.checkpoint.resume == Resume::Auto {
                resume::check_data(&found.checkpoint, &config.data.source, &dataset.digest)?;
            }
        }
        let progress = |f: &resume::ResumePoint| {
            let CheckpointMeta { step, tokens, .. } = f.checkpoint.meta();
            let is_own = is_in_dir(&f.checkpoint, &checkpoints);
            // A checkpoint of another run is not a checkpoint of this one.
            (*step, *tokens, is_own.then_some(*step))
        };
        let (done, tokens, last_checkpoint) = found.as_ref().map_or((0, 0, None), progress);
        let info = report::run_info(&setup, &plan, &shape, done);
        emit(Event::Start(Box::new(info.clone())));
        let notes = [
            // The vocabulary of a resumed run cannot change.
            unused_vocab_note(&shape, setup.dataset.tokenizer.vocab_size())
                .filter(|_| found.is_none()),
            multi_host_note(&plan.mesh, &*setup.comm),
        ];
        notes.into_iter().flatten().for_each(|note| emit(Event::Note(note)));
        let init = match &found {
            Some(_) => ParamInit::FromCheckpoint,
            None => ParamInit::Random { seed: setup.config.train.seed },
        };
        let mut training = Self::new(setup, plan, shape, &info, init)?;
        (training.tokens, training.last_checkpoint) = (tokens, last_checkpoint);
        training.complete_checkpoint = last_checkpoint;
        let mut notes = training.config.notes(&training.plan);
        notes.extend(no_graphs_note(&training.config, &training.engine));
        notes.extend(training.engine.take_notes());
        notes.into_iter().for_each(|note| emit(Event::Note(note)));
        if let Some(found) = found {
            for skipped in &found.skipped {
                emit(Event::Note(format!("skipped damaged checkpoint {skipped}")));
            }
            manager.iter_mut().for_each(|manager| manager.writer.mark_damaged(&found.skipped));
            training.restore(&found.checkpoint)?;
            let from = found.checkpoint.folder().display();
            emit(Event::Note(format!("resumed after step {done} from {from}")));
        }
        // Without a step left, only a run that has no checkpoint of its own writes one.
        let writes = done < training.config.train.steps || last_checkpoint.is_none();
        if let Some(manager) = &manager
            && training.config.checkpoint.resume != Resume::Auto
            && writes
        {
            for path in manager.writer.move_aside(last_checkpoint)? {
                let note = "belongs to the previous run and was moved here";
                emit(Event::Note(format!("{} {note}", path.display())));
            }
        }
        training.manager = manager;
        broadcast_state(&mut training.engine)?;
        // All checkpoint managers must exist before any rank starts to write.
        training.comm.barrier()?;
        let Dataset { tokenizer, validation: tokens, .. } = &training.dataset;
        if rank == 0 && training.manager.is_some() && writes {
            tokenizer.save(&checkpoints.join(TOKENIZER))?;
        }
        training.validation = validation_loader(&training.config, tokens, emit);
        Ok(training)
    }

    /// Reads this rank's shards of a checkpoint. Of the replicas only the first one reads, and the others
    /// receive a broadcast: thousands of ranks reading the whole model would overload any file system.
    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        if OwnedShards::of(&self.engine).replica().rank != 0 {
            return Ok(());
        }
        match checkpointing::restore(&mut self.engine, checkpoint) {
            Err(TrainError::Checkpoint(why)) => {
                Err(resume::unreadable(&*self.comm, checkpoint.folder(), why))
            }
            other => other,
        }
    }

    /// With initial parameters, and without checkpoints and validation.
    pub(super) fn new(
        setup: TrainingSetup,
        plan: ParallelLayout,
        shape: ModelShape,
        info: &metrics::RunInfo,
        init: ParamInit,
    ) -> Result<Self> {
        let throughput = Throughput::new(info, &shape);
        let TrainingSetup { config, comm, device_comm, device, dataset, folder, run, .. } = setup;
        let chosen = match config.train.micro_batch {
            MicroBatchSize::Chosen(size) => size.to_string(),
            MicroBatchSize::Auto | MicroBatchSize::Fixed(_) => String::new(),
        };
        let (data, split) = (dataset.digest.clone(), plan.mesh.to_string());
        let extra = [(RUN, run), (DATA, data), (SPLIT, split), (MICRO_BATCH, chosen)];
        let extra = extra.into_iter().filter(|(_, what)| !what.is_empty());
        let extra = extra.map(|(name, what)| (name.to_owned(), what)).collect();
        let cost = rank_cost(&shape, &plan, config.cost_options(), comm.rank() as usize)
            .map_err(|error| ConfigError::Inconsistent(error.to_string()))?;
        let groups = ProcessGroups::new(device_comm.unwrap_or_else(|| comm.clone()), plan.mesh)?;
        let stage = stage(&plan, &shape, &groups)?;
        let tiles = config.parallel.tiles;
        let device_model =
            DeviceModel::parallel(shape, &groups, plan.sequence_parallel, tiles, device);
        let sharding = sharding_config(&config, &plan, &folder);
        let tensors = max_tensors(&device_model.model, &plan);
        let is_required = config.train.check_memory;
        let unreserved = reserve(&*device_model.device, &cost.memory, tensors, is_required)?;
        let mut engine = Engine::new(device_model, groups, stage, &sharding, init)?;
        engine.notes.extend(unreserved);
        if config.train.cuda_graph != Some(false) {
            engine.enable_graphs();
        }
        Ok(Self {
            schedule: config.lr_schedule(plan.mesh.dp),
            config,
            plan,
            comm,
            engine,
            dataset,
            validation: None,
            manager: None,
            folder,
            done: info.start_step,
            tokens: 0,
            last_checkpoint: None,
            complete_checkpoint: None,
            extra,
            throughput,
            gpu_memory: GpuMemoryPeak::default(),
            usage: Usage::new(cost),
        })
    }
}

/// The parallel plan and the model shape.
pub(super) fn plan(setup: &TrainingSetup) -> Result<(ParallelLayout, ModelShape)> {
    let (ranks, vocabulary) = (setup.comm.size() as usize, setup.dataset.tokenizer.vocab_size());
    Ok(setup.config.validate_with_vocab(ranks, vocabulary)?)
}

/// This rank's pipeline stage.
fn stage(plan: &ParallelLayout, shape: &ModelShape, groups: &ProcessGroups) -> Result<Stage> {
    if plan.mesh.pp == 1 {
        return Ok(Stage::single(shape));
    }
    let contradiction = |error: StageError| ConfigError::Inconsistent(error.to_string());
    Ok(Stage::new(shape, plan.pipeline_size(), groups.coord.pp).map_err(contradiction)?)
}

/// ZeRO stage and offloading.
fn sharding_config(config: &Config, plan: &ParallelLayout, run: &Path) -> ShardingConfig {
    let config::Offload { optimizer, parameters, dir } = &config.offload;
    let dir = match dir.as_str() {
        "" => run.join(OFFLOADED),
        dir => PathBuf::from(dir),
    };
    let zero = ZeroStage::from_number(plan.zero).unwrap_or_default();
    let offload = OffloadTiers { optimizer: *optimizer, parameters: *parameters, dir };
    ShardingConfig { zero, offload }
}

/// A note if ranks that communicate in every layer are on different hosts.
fn multi_host_note(mesh: &Mesh, comm: &dyn Comm) -> Option<String> {
    let hosts: Vec<String> = (0..comm.size()).map(|rank| comm.peer(rank).host).collect();
    mesh.cross_host_warning(&hosts)
}

/// A note if CUDA graphs are wanted, but not supported.
fn no_graphs_note(config: &Config, engine: &Engine) -> Option<String> {
    let is_missing =
        config.train.cuda_graph == Some(true) && !engine.device_model.device.can_capture();
    is_missing
        .then(|| "train.cuda_graph has no effect: the device cannot capture graphs".to_owned())
}

/// A note if the model's vocabulary is far larger than the tokenizer's: memory and time are wasted, or the
/// data is not the intended one.
fn unused_vocab_note(shape: &ModelShape, tokens: usize) -> Option<String> {
    let vocab_size = shape.vocab_size;
    (vocab_size > 4 * tokens).then(|| {
        format!(
            "model.vocab_size is {vocab_size}, but the tokenizer has only {tokens} tokens: set \
             model.vocab_size={tokens}, or check data.source and data.tokenizer"
        )
    })
}

/// The checkpoint directory, if checkpoints are enabled.
pub(super) fn checkpoint_dir(config: &Config, folder: &Path) -> Option<PathBuf> {
    (config.checkpoint.interval != 0).then(|| run_paths::checkpoint_dir(config, folder))
}

/// Makes restarted ranks resume from the checkpoints of their own run, regardless of the configured
/// `checkpoint.resume`. Checkpoints of other runs count only if the `name` of this one is unknown.
pub fn resume_own_run(config: &mut Config, run: &Path, name: &str) -> Result<()> {
    if let Some(own) = checkpoint_dir(config, run)
        && if name.is_empty() { has_checkpoint(&own)? } else { has_checkpoint_of_run(&own, name)? }
    {
        config.checkpoint.resume = Resume::Auto;
    }
    Ok(())
}

/// The validation data. A text too short for it can still be trained on.
fn validation_loader(
    config: &Config,
    tokens: &Tokens,
    emit: &mut dyn FnMut(Event),
) -> Option<DataLoader> {
    if config.train.eval_interval == 0 {
        return None;
    }
    let order = Sampler::sequential(tokens.len(), config.model.seq_len as u64);
    let note = |error: &DataError| emit(Event::Note(format!("validation is off: {error}")));
    let order = order.inspect_err(note).ok()?;
    Some(DataLoader::new(tokens.clone(), order))
}

/// Fails with the first rank whose configuration or data differs from rank 0's.
pub fn check_agreement(setup: &TrainingSetup) -> Result<()> {
    let (comm, config) = (&*setup.comm, setup.config.to_toml());
    for (what, text) in [("configuration", &config), ("data", &setup.dataset.digest)] {
        let digests = gather::all_gather(comm, &hex(&Sha256::digest(text)))?;
        let mut ranks = (0..).zip(&digests);
        if let Some((rank, _)) = ranks.find(|(_, digest)| **digest != digests[0]) {
            let host = comm.peer(rank).host;
            return Err(TrainError::RankMismatch { rank, host, what });
        }
    }
    Ok(())
}

/// Broadcasts the state of the first replica to the others, and all-gathers updated parameters.
pub fn broadcast_state(engine: &mut Engine) -> Result<()> {
    let groups = &engine.groups;
    let copies = if engine.state.shard_count == 1 { &groups.data } else { &groups.replica };
    let copies = copies.clone();
    for block in engine.state.local_blocks() {
        if let Some(comm) = &copies {
            checkpointing::visit_block(engine, block, &mut |elements| {
                comm.broadcast(elements, 0)?;
                Ok(true)
            })?;
        }
        engine.state.all_gather_updated(block)?;
    }
    Ok(())
}
