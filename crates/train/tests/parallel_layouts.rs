//! Training is independent of the parallel layout: tensor, sequence, pipeline, context and data
//! parallelism, ZeRO, tiles and offloading, and their combinations.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{LossAndNorm, Training, VOCAB_SIZE, run_ranks};
use proptest::prelude::*;
use regatta_comm::{Comm, in_process};
use regatta_device::reference::Reference;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{PipelineSize, ScheduleKind, Stage};
use regatta_predict::shape::{Family, ModelShape};
use regatta_train::model::Model;
use regatta_train::offload::{OffloadTiers, Tier};
use regatta_train::parallel::context::ContextParallel;
use regatta_train::parallel::tensor::TensorParallel;
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{Engine, Net};

const BATCH: usize = 8;
const SEQ_LEN: usize = 8;
const STEPS: u64 = 20;

fn shape(family: Family) -> ModelShape {
    ModelShape {
        family,
        vocab_size: VOCAB_SIZE as usize,
        seq_len: SEQ_LEN,
        hidden_size: 16,
        num_layers: 4,
        num_heads: 8,
        num_kv_heads: if family == Family::Llama { 4 } else { 8 },
        intermediate_size: 24,
        tie_embeddings: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_eps: 1e-5,
        rope_theta: 100.0,
    }
}

/// A parallel layout and what it may interact with.
#[derive(Debug, Clone, Copy)]
struct Case {
    family: Family,
    mesh: Mesh,
    sequence_parallel: bool,
    micro_batches: usize,
    recompute: bool,
    dropout: f32,
    schedule: ScheduleKind,
    virtual_stages: usize,
    zero: ZeroStage,
    tiles: usize,
    /// Whether the head is tied to the token embedding.
    tied: bool,
    /// Whether parameters and moments are offloaded to disk.
    on_disk: bool,
}

impl Case {
    fn new(family: Family) -> Self {
        let mesh = Mesh::data_parallel(1);
        Self {
            family,
            mesh,
            sequence_parallel: false,
            micro_batches: 1,
            recompute: false,
            dropout: 0.0,
            schedule: ScheduleKind::OneFOneB,
            virtual_stages: 1,
            zero: ZeroStage::Off,
            tiles: 1,
            tied: family == Family::Gpt2,
            on_disk: false,
        }
    }

    fn engine(&self, comm: &Arc<dyn Comm>, dir: PathBuf) -> Engine {
        let groups = ProcessGroups::new(comm.clone(), self.mesh).unwrap();
        let tensor = TensorParallel::new(groups.tensor.clone(), self.sequence_parallel);
        let model = Model::tiled(self.shape(), tensor.shard, self.tiles);
        let shard = groups.coord.context_shard(&self.mesh);
        let context = ContextParallel::new(groups.context_ring.clone(), shard);
        let net = Net::tensor_parallel(tensor, model, Box::new(Reference));
        let net = net.with_context_parallel(context);
        let Self { mesh, schedule, virtual_stages, micro_batches, .. } = *self;
        let stage = match mesh.pp {
            1 => Stage::single(&net.model.shape),
            pp => {
                let size =
                    PipelineSize { kind: schedule, stages: pp, virtual_stages, micro_batches };
                Stage::new(&net.model.shape, size, groups.coord.pp).unwrap()
            }
        };
        let tier = if self.on_disk { Tier::Disk } else { Tier::Device };
        let offload = OffloadTiers { optimizer: tier, parameters: tier, dir };
        let sharding = ShardingConfig { zero: self.zero, offload };
        Engine::new(net, groups, stage, &sharding, ParamInit::Random { seed: 11 }).unwrap()
    }

    fn shape(&self) -> ModelShape {
        ModelShape { tie_embeddings: self.tied, ..shape(self.family) }
    }

    /// Trains on one rank.
    fn rank(self, comm: Arc<dyn Comm>, dir: PathBuf) -> Vec<LossAndNorm> {
        let mut engine = self.engine(&comm, dir);
        let replica = self.mesh.coord(comm.rank() as usize).dp;
        let training = Training {
            steps: STEPS,
            batch: BATCH,
            seq_len: SEQ_LEN,
            micro_batches: self.micro_batches,
            dropout: self.dropout,
            recompute: if self.recompute { |_| true } else { |_| false },
        };
        training.run(&mut engine, &*comm, replica, self.mesh.dp)
    }

    /// Trains on all ranks, whose metrics must agree.
    fn run(self) -> Vec<LossAndNorm> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-layouts-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let world = in_process::world(self.mesh.ranks() as u32);
        let mut all = run_ranks(world, |comm| self.rank(comm, dir.clone()));
        let _ = std::fs::remove_dir_all(&dir);
        assert!(all.iter().all(|one| *one == all[0]), "ranks disagree: {self:?}\n{all:?}");
        all.swap_remove(0)
    }

    /// Compares with a single rank.
    fn check(self) {
        let Self { dropout, tied, .. } = self;
        let single = Self { dropout, tied, ..Self::new(self.family) }.run();
        let (first, last) = (single[0].loss, single[STEPS as usize - 1].loss);
        assert!(last < first - 0.1, "loss did not decrease: {single:?}");
        for (step, (a, b)) in single.iter().zip(self.run()).enumerate() {
            for (a, b) in [(a.loss, b.loss), (a.grad_norm, b.grad_norm)] {
                let error = (a - b).abs() / a;
                assert!(error < 1e-9, "{self:?} in step {step}: {a} on one rank, {b}");
            }
        }
    }
}

fn tensor_mesh(tp: usize) -> Mesh {
    Mesh { tp, ..Mesh::data_parallel(1) }
}

#[test]
fn tensor_parallel() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        for (tp, sequence_parallel) in [(2, false), (2, true), (4, true), (4, false)] {
            let case = Case { mesh: tensor_mesh(tp), sequence_parallel, ..Case::new(family) };
            case.check();
            Case { micro_batches: 2, recompute: true, dropout: 0.1, ..case }.check();
        }
    }
}

#[test]
fn tensor_and_data_parallel() {
    for family in [Family::Gpt2, Family::Llama] {
        let mesh = Mesh { tp: 2, dp: 2, shard: 2, ..Mesh::data_parallel(1) };
        Case { mesh, sequence_parallel: true, micro_batches: 2, ..Case::new(family) }.check();
        let mesh = Mesh { tp: 4, dp: 2, shard: 2, ..Mesh::data_parallel(1) };
        Case { mesh, recompute: true, dropout: 0.1, ..Case::new(family) }.check();
    }
}

fn pipeline_mesh(pp: usize) -> Mesh {
    Mesh { pp, ..Mesh::data_parallel(1) }
}

#[test]
fn pipeline_schedules() {
    for family in [Family::Gpt2, Family::Llama] {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubble] {
            for (pp, micro_batches) in [(2, 4), (3, 2), (4, 8), (2, 1)] {
                let case =
                    Case { mesh: pipeline_mesh(pp), schedule, micro_batches, ..Case::new(family) };
                case.check();
            }
            let mesh = pipeline_mesh(2);
            Case {
                mesh,
                schedule,
                micro_batches: 4,
                recompute: true,
                dropout: 0.1,
                ..Case::new(family)
            }
            .check();
        }
        let mesh = pipeline_mesh(2);
        let schedule = ScheduleKind::Interleaved;
        Case { mesh, schedule, virtual_stages: 2, micro_batches: 4, ..Case::new(family) }.check();
        Case {
            mesh,
            schedule,
            virtual_stages: 3,
            micro_batches: 2,
            dropout: 0.1,
            ..Case::new(family)
        }
        .check();
    }
}

#[test]
fn data_tensor_and_pipeline_parallel() {
    for family in [Family::Gpt2, Family::Llama] {
        let mesh = Mesh { dp: 2, tp: 2, pp: 2, cp: 1, shard: 2 };
        for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZeroBubble] {
            Case { mesh, schedule, micro_batches: 2, sequence_parallel: true, ..Case::new(family) }
                .check();
        }
    }
}

fn context_mesh(cp: usize) -> Mesh {
    Mesh { cp, shard: cp, ..Mesh::data_parallel(1) }
}

#[test]
fn context_parallel() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        for cp in [2, 4] {
            let case = Case { mesh: context_mesh(cp), ..Case::new(family) };
            case.check();
            Case { micro_batches: 2, recompute: true, dropout: 0.1, ..case }.check();
        }
    }
}

#[test]
fn context_with_other_axes() {
    for family in [Family::Gpt2, Family::Llama] {
        for (dp, cp, tp, pp) in [(2, 2, 1, 1), (1, 2, 2, 1), (1, 2, 1, 2), (1, 2, 2, 2)] {
            let mesh = Mesh { dp, cp, tp, pp, shard: dp * cp };
            Case {
                mesh,
                sequence_parallel: true,
                micro_batches: 2,
                dropout: 0.1,
                ..Case::new(family)
            }
            .check();
        }
    }
}

const STAGES: [ZeroStage; 4] = [ZeroStage::Off, ZeroStage::One, ZeroStage::Two, ZeroStage::Three];

#[test]
fn zero_with_other_axes() {
    for family in [Family::Gpt2, Family::Llama] {
        for zero in STAGES {
            for (dp, cp, tp, pp, shard) in [
                (2, 1, 2, 1, 2),
                (2, 1, 1, 2, 2),
                (2, 2, 1, 1, 4),
                (4, 1, 1, 2, 2),
                (2, 1, 2, 2, 2),
            ] {
                let mesh = Mesh { dp, cp, tp, pp, shard };
                let (schedule, sequence_parallel, micro_batches) =
                    (ScheduleKind::ZeroBubble, true, 2);
                let case = Case {
                    mesh,
                    zero,
                    schedule,
                    sequence_parallel,
                    micro_batches,
                    ..Case::new(family)
                };
                Case { dropout: 0.1, recompute: pp == 1, ..case }.check();
            }
        }
    }
}

#[test]
fn tiled_layers() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        Case { tiles: 2, ..Case::new(family) }.check();
        let mesh = Mesh::data_parallel(2);
        for zero in STAGES {
            Case { mesh, zero, tiles: 3, micro_batches: 2, ..Case::new(family) }.check();
        }
        let mesh = Mesh { tp: 2, pp: 2, ..Mesh::data_parallel(1) };
        let schedule = ScheduleKind::ZeroBubble;
        Case {
            mesh,
            schedule,
            tiles: 5,
            micro_batches: 2,
            sequence_parallel: true,
            ..Case::new(family)
        }
        .check();
    }
}

#[test]
fn tiled_embedding_and_head() {
    for family in [Family::Gpt2, Family::Llama] {
        for tied in [false, true] {
            let (recompute, micro_batches, on_disk) = (true, 2, true);
            let case = Case { tied, tiles: 3, micro_batches, ..Case::new(family) };
            Case { on_disk, recompute, dropout: 0.1, ..case }.check();
            Case { on_disk, mesh: Mesh::data_parallel(2), ..case }.check();
            // More tiles than some ranks have rows of the vocabulary.
            Case { mesh: tensor_mesh(4), tiles: 4, ..case }.check();
            let mesh = Mesh { pp: 2, tp: 2, ..Mesh::data_parallel(2) };
            for zero in STAGES {
                Case {
                    mesh,
                    zero,
                    schedule: ScheduleKind::ZeroBubble,
                    sequence_parallel: true,
                    ..case
                }
                .check();
                // The first and the last stage have the tied table, sharded and replicated.
                let mesh = Mesh { pp: 2, shard: 2, ..Mesh::data_parallel(4) };
                Case { mesh, zero, tiles: 7, on_disk: zero == ZeroStage::One, recompute, ..case }
                    .check();
            }
        }
    }
}

/// Any combination of the four axes and the other options.
fn any_case() -> impl Strategy<Value = Case> {
    let sizes = [1usize, 1, 2, 2, 4];
    let axis = move || proptest::sample::select(sizes.to_vec());
    let mesh = (axis(), axis(), axis(), axis())
        .prop_map(|(dp, cp, tp, pp)| Mesh { dp, cp, tp, pp, shard: dp * cp })
        .prop_filter("2 to 8 ranks", |mesh| (2..=8).contains(&mesh.ranks()));
    let kinds = ScheduleKind::ALL.to_vec();
    let zero = proptest::sample::select(STAGES.to_vec());
    let rest = (any::<[bool; 6]>(), proptest::sample::select(kinds), zero, 0usize..3, 1usize..4);
    (mesh, rest).prop_map(
        |(
            mesh,
            (
                [llama, tied, sequence_parallel, recompute, hybrid, on_disk],
                schedule,
                zero,
                more,
                tiles,
            ),
        )| {
            // Full or hybrid sharding.
            let mesh = Mesh { shard: if hybrid { mesh.shard.min(2) } else { mesh.shard }, ..mesh };
            let family = if llama { Family::Llama } else { Family::Gpt2 };
            let is_split = schedule == ScheduleKind::Interleaved && mesh.pp == 2;
            let schedule = if schedule == ScheduleKind::Interleaved && !is_split {
                ScheduleKind::OneFOneB
            } else {
                schedule
            };
            // Interleaved schedules need a multiple of the stages.
            let micro_batches =
                [1, 2, 4][more].max(if is_split { 2 } else { 1 }).min(BATCH / mesh.dp);
            Case {
                mesh,
                sequence_parallel,
                micro_batches,
                recompute,
                schedule,
                zero,
                tiles,
                tied,
                on_disk: on_disk && tiles > 1,
                virtual_stages: if is_split { 2 } else { 1 },
                dropout: if recompute { 0.1 } else { 0.0 },
                ..Case::new(family)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn any_combination(case in any_case()) {
        case.check();
    }
}
