//! What the smoke test checks of the training loop: every replica receives its state, steps leave all of
//! them identical, and a checkpoint restores them.

use std::path::{Path, PathBuf};

use regatta_comm::{Collectives, ReduceOp, gather};
use regatta_model::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::checkpointing::{self, CheckpointManager, OwnedShards, SaveOutcome};
use super::{Result, TrainError, TrainingLoop, TrainingSetup, report, start};
use crate::checkpoint::{Checkpoint, StateTensor};
use crate::metrics::{EndReason, Event};
use crate::state::ParamInit;
use crate::step::Engine;

/// The training loop of a smoke test.
pub struct SmokeRun(TrainingLoop);

/// The state of a rank. Ranks with the same replica key must have the same digest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StateDigest {
    /// Tensor-parallel rank, stage and shard.
    pub replica_key: (usize, usize, usize),
    /// SHA-256 of parameters and optimizer state.
    pub sha256: String,
}

impl SmokeRun {
    /// Starts without checkpoints and validation. All replicas but the first clear their state before the
    /// broadcast, to verify that they receive it.
    pub fn start(setup: TrainingSetup) -> Result<Self> {
        let (plan, shape) = start::plan(&setup)?;
        let info = report::run_info(&setup, &plan, &shape, 0);
        let init = ParamInit::Random { seed: setup.config.train.seed };
        let mut training = TrainingLoop::new(setup, plan, shape, &info, init)?;
        if OwnedShards::of(&training.engine).replica().rank != 0 {
            clear_state(&mut training.engine)?;
        }
        start::broadcast_state(&mut training.engine)?;
        Ok(Self(training))
    }

    /// Runs all steps. `stop` is polled after each.
    pub fn train(
        &mut self,
        stop: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<EndReason> {
        self.0.train_steps(stop, emit)
    }

    /// Number of parameters of the model.
    pub fn parameters(&self) -> usize {
        self.0.engine.device_model.model.shape.num_params()
    }

    /// Bytes of this rank's parameters and optimizer state.
    pub fn state_bytes(&self) -> u64 {
        let Engine { state, device_model, .. } = &self.0.engine;
        let elements: usize = state.local_blocks().map(|block| state.shards[block].len()).sum();
        (StateTensor::ALL.len() * elements * device_model.device.master_dtype().size()) as u64
    }

    /// The state of this rank.
    pub fn digest(&mut self) -> Result<StateDigest> {
        let engine = &mut self.0.engine;
        let mut sum = Sha256::new();
        for block in engine.state.local_blocks() {
            checkpointing::visit_block(engine, block, &mut |elements| {
                let bytes: Vec<u8> = elements.iter().flat_map(|n| n.to_le_bytes()).collect();
                sum.update(&bytes);
                Ok(false)
            })?;
        }
        let OwnedShards { mesh, coord, shard_count, .. } = OwnedShards::of(engine);
        let replica_key = (coord.tp, coord.pp, coord.data_rank(&mesh) % shard_count);
        Ok(StateDigest { replica_key, sha256: hex(&sum.finalize()) })
    }

    /// Writes a checkpoint to a temporary directory, reads it back, and removes it. Returns the directory, and
    /// the first error of any rank.
    pub fn save_and_restore(&mut self) -> Result<(PathBuf, Option<String>)> {
        let comm = self.0.comm.clone();
        // A name that is unique on a shared file system.
        let mut number = [i64::from(std::process::id())];
        comm.broadcast(&mut number, 0)?;
        let folder = self.0.folder.join(format!("smoke-{}", number[0]));
        let mut error = self.save(&folder)?;
        if error.is_none() {
            let own = self.restore(&folder)?;
            error = gather::first_error(&*comm, own)?;
        }
        if comm.rank() == 0 {
            // Leftovers are harmless, and errors are already reported.
            let _ = std::fs::remove_dir_all(&folder);
        }
        Ok((folder, error))
    }

    /// Saves a checkpoint. Returns the first error of any rank.
    fn save(&mut self, folder: &Path) -> Result<Option<String>> {
        let comm = self.0.comm.clone();
        let manager = CheckpointManager::new(folder, comm.rank() as usize, comm.size() as usize, 1);
        // All managers must exist before any rank starts to write.
        let error = manager.as_ref().err().map(ToString::to_string);
        let error = gather::first_error(&*comm, error)?;
        let (Ok(mut manager), None) = (manager, &error) else { return Ok(error) };
        let meta = self.0.checkpoint_meta();
        manager.start(&mut self.0.engine, meta)?;
        manager.wait();
        let mut counts = manager.save_counts();
        comm.all_reduce(&mut counts, ReduceOp::Sum)?;
        let own = match manager.resolve(counts) {
            Some(SaveOutcome::Complete { .. }) => None,
            Some(SaveOutcome::Failed { why, .. }) => why.map(|why| why.to_string()),
            None => Some("the save neither completed nor failed in time".to_owned()),
        };
        Ok(gather::first_error(&*comm, own)?)
    }

    /// Reads the checkpoint back into a cleared state. Returns what is wrong on this rank, if anything.
    fn restore(&mut self, folder: &Path) -> Result<Option<String>> {
        let saved = self.digest()?.sha256;
        clear_state(&mut self.0.engine)?;
        let restored = match Checkpoint::latest(folder) {
            Ok(Some(checkpoint)) => checkpointing::restore(&mut self.0.engine, &checkpoint),
            Ok(None) => return Ok(Some(format!("found no checkpoint in {}", folder.display()))),
            Err(error) => Err(error.into()),
        };
        match restored {
            Err(TrainError::Checkpoint(error)) => return Ok(Some(error.to_string())),
            other => other?,
        }
        let is_same = self.digest()?.sha256 == saved;
        Ok((!is_same).then(|| format!("{} differs from the saved state", folder.display())))
    }
}

/// Sets parameters and optimizer state to zero.
fn clear_state(engine: &mut Engine) -> Result<()> {
    for block in engine.state.local_blocks() {
        checkpointing::visit_block(engine, block, &mut |elements| {
            elements.fill(0.0);
            Ok(true)
        })?;
    }
    Ok(())
}
