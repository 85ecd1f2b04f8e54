//! The micro-batch size: as configured, as CPUs need, or as the GPUs of a run hold. No I/O.

use super::mesh::divisors;
use super::suggest::{Candidates, Infeasible};
use super::validate::replicas;
use super::{Config, MicroBatchSize, Result};
use regatta_model::units::pluralize;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::ScheduleKind;

/// Maximum tokens of a rank's micro-batch that `auto` selects on GPUs. More tokens need more memory, but
/// GEMMs of this size already occupy a whole GPU.
const MAX_GPU_TOKENS: usize = 65_536;

impl Config {
    /// Sequences per forward and backward pass.
    pub(super) fn micro_batch(
        &self,
        replica_batch: usize,
        mesh: &Mesh,
    ) -> Result<usize, Infeasible> {
        let size = match self.train.micro_batch {
            MicroBatchSize::Auto => return self.cpu_micro_batch(replica_batch, mesh),
            MicroBatchSize::Chosen(size) | MicroBatchSize::Fixed(size) => size,
        };
        let others = Candidates::Divisors { of: replica_batch, near: size, times: 1 };
        if !replica_batch.is_multiple_of(size) {
            let origin = match self.train.batch {
                0 => "train.batch_per_replica".to_owned(),
                batch => format!("train.batch {batch} over {}", replicas(mesh)),
            };
            let sequences = pluralize(replica_batch, "sequence");
            return Err(Infeasible::new(format!(
                "train.micro_batch {size} does not divide the {sequences} of a replica ({origin})"
            ))
            .suggest_key("train.micro_batch", others));
        }
        let fits = |size| self.fills_pipeline(replica_batch / size, mesh.pp);
        if fits(size) {
            return Ok(size);
        }
        if !divisors(replica_batch).into_iter().any(fits) {
            return Err(self.too_few_sequences(replica_batch, mesh));
        }
        let micro_batches = match replica_batch / size {
            1 => "1 micro-batch".to_owned(),
            several => format!("{several} micro-batches"),
        };
        Err(Infeasible::new(format!(
            "train.micro_batch {size} gives {} per step ({}), but parallel.pp {} with \
             parallel.schedule {} needs {}",
            micro_batches,
            pluralize(replica_batch, "sequence"),
            mesh.pp,
            self.parallel.schedule,
            self.needed_micro_batches(mesh.pp)
        ))
        .suggest_key("train.micro_batch", others))
    }

    /// The largest size up to `train.cpu_micro_batch` that fills the pipeline. If that is auto, the whole
    /// batch; with a pipeline, the largest size that leaves two micro-batches per stage, so that the bubble
    /// stays below half, otherwise the smallest.
    fn cpu_micro_batch(&self, replica_batch: usize, mesh: &Mesh) -> Result<usize, Infeasible> {
        let sizes = self.pipeline_sizes(replica_batch, mesh.pp);
        let is_small = |size: &usize| match self.train.cpu_micro_batch {
            Some(max) => *size <= max,
            None => mesh.pp == 1 || replica_batch / size >= 2 * mesh.pp,
        };
        let largest = sizes.iter().copied().rfind(is_small);
        let size = largest.or_else(|| sizes.first().copied());
        size.ok_or_else(|| self.too_few_sequences(replica_batch, mesh))
    }

    /// Divisors of a replica's batch that give enough micro-batches for the pipeline, in ascending order.
    fn pipeline_sizes(&self, replica_batch: usize, pp: usize) -> Vec<usize> {
        let mut sizes = divisors(replica_batch);
        sizes.retain(|size| self.fills_pipeline(replica_batch / size, pp));
        sizes
    }

    /// The sizes that `auto` may select on GPUs, in ascending order, at least one: divisors of a replica's
    /// batch with a limited number of tokens. A pipeline has at least as many micro-batches as on CPUs.
    pub fn gpu_micro_batches(&self, ranks: usize) -> Result<Vec<usize>> {
        let mut config = self.clone();
        config.train.micro_batch = MicroBatchSize::Auto;
        let plan = config.validate(ranks)?;
        let pp = plan.mesh.pp;
        let mut sizes = self.pipeline_sizes(plan.batch_per_replica, pp);
        sizes.retain(|size| pp == 1 || *size <= plan.micro_batch);
        let tokens = |size: usize| size.saturating_mul(self.model.seq_len / plan.mesh.cp);
        let allowed = sizes.iter().filter(|size| tokens(**size) <= MAX_GPU_TOKENS).count();
        sizes.truncate(allowed.max(1));
        Ok(sizes)
    }

    /// Whether there are enough micro-batches for the pipeline schedule.
    fn fills_pipeline(&self, micro_batches: usize, pp: usize) -> bool {
        let is_interleaved = self.parallel.schedule == ScheduleKind::Interleaved;
        pp == 1 || micro_batches >= pp && (!is_interleaved || micro_batches.is_multiple_of(pp))
    }

    fn needed_micro_batches(&self, pp: usize) -> String {
        match self.parallel.schedule {
            ScheduleKind::Interleaved => format!("a multiple of {pp}"),
            _ => format!("at least {pp}"),
        }
    }

    fn too_few_sequences(&self, replica_batch: usize, mesh: &Mesh) -> Infeasible {
        let (key, times) = match self.train.batch {
            0 => ("train.batch_per_replica", 1),
            _ => ("train.batch", mesh.dp),
        };
        let near = Candidates::Multiples { of: mesh.pp * times, near: replica_batch * times };
        Infeasible::new(format!(
            "parallel.pp {} with parallel.schedule {} needs {} micro-batches per step, but a replica \
             has {}",
            mesh.pp,
            self.parallel.schedule,
            self.needed_micro_batches(mesh.pp),
            pluralize(replica_batch, "sequence")
        ))
        .suggest_key(key, near)
    }
}
