//! Training is independent of the parallel layout: tensor, sequence, pipeline, context and data
//! parallelism, ZeRO, tiles and offloading, and their combinations.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use regatta_comm::Comm;
use regatta_device::reference::Reference;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{PipelineSize, ScheduleKind, Stage};
use regatta_predict::shape::{Family, ModelShape};
use regatta_predict::testing;
use regatta_testbed::{all_cases, in_process};
use regatta_train::offload::{OffloadTiers, Tier};
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{DeviceModel, Engine};

use crate::common::{LossAndNorm, ShortRun, TempDir, run_ranks};

const BATCH: usize = 8;
const SEQ_LEN: usize = 8;
/// Twenty in `cargo xtask accept parallel-layouts`.
fn steps() -> u64 {
    if all_cases() { 20 } else { 8 }
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
        Self {
            family,
            mesh: mesh(1, 1, 1, 1),
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
        let Self { mesh, schedule: kind, virtual_stages, micro_batches, .. } = *self;
        let (sequence_parallel, device) = (self.sequence_parallel, Box::new(Reference));
        let device_model =
            DeviceModel::parallel(self.shape(), &groups, sequence_parallel, self.tiles, device);
        let stage = match mesh.pp {
            1 => Stage::single(&device_model.model.shape),
            stages => {
                let size = PipelineSize { kind, stages, virtual_stages, micro_batches };
                Stage::new(&device_model.model.shape, size, groups.coord.pp).unwrap()
            }
        };
        let tier = if self.on_disk { Tier::Disk } else { Tier::Device };
        let offload = OffloadTiers { optimizer: tier, parameters: tier, dir };
        let sharding = ShardingConfig { zero: self.zero, offload };
        Engine::new(device_model, groups, stage, &sharding, ParamInit::Random { seed: 11 }).unwrap()
    }

    fn shape(&self) -> ModelShape {
        ModelShape {
            hidden_size: 16,
            num_layers: 4,
            num_heads: 8,
            num_kv_heads: if self.family == Family::Llama { 4 } else { 8 },
            intermediate_size: 24,
            tie_embeddings: self.tied,
            ..testing::shape(self.family)
        }
    }

    /// Trains on one rank.
    fn rank(self, comm: Arc<dyn Comm>, dir: PathBuf) -> Vec<LossAndNorm> {
        let mut engine = self.engine(&comm, dir);
        let replica = self.mesh.coord(comm.rank() as usize).dp;
        let training = ShortRun {
            steps: steps(),
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
        let dir = TempDir::new();
        let world = in_process::world(self.mesh.ranks() as u32);
        let mut all = run_ranks(world, |comm| self.rank(comm, dir.0.clone()));
        assert!(all.iter().all(|one| *one == all[0]), "ranks disagree: {self:?}\n{all:?}");
        all.swap_remove(0)
    }

    /// Compares with a single rank.
    fn check(self) {
        let Self { dropout, tied, .. } = self;
        let single = Self { dropout, tied, ..Self::new(self.family) }.run();
        let (first, last) = (single[0].loss, single[steps() as usize - 1].loss);
        assert!(last < first - 0.1, "loss did not decrease: {single:?}");
        for (step, (a, b)) in single.iter().zip(self.run()).enumerate() {
            for (a, b) in [(a.loss, b.loss), (a.grad_norm, b.grad_norm)] {
                let error = (a - b).abs() / a;
                assert!(error < 1e-9, "{self:?} in step {step}: {a} on one rank, {b}");
            }
        }
    }
}

/// A mesh of these numbers of data-, context-, tensor- and pipeline-parallel ranks, fully sharded.
fn mesh(dp: usize, cp: usize, tp: usize, pp: usize) -> Mesh {
    Mesh { dp, cp, tp, pp, shard: dp * cp }
}

const GPT2_AND_LLAMA: [Family; 2] = [Family::Gpt2, Family::Llama];
const FAMILIES: [Family; 3] = [Family::Gpt2, Family::Llama, Family::Mlp];

#[test]
fn tensor_parallel() {
    for family in FAMILIES {
        for (tp, sequence_parallel) in [(2, false), (2, true), (4, true), (4, false)] {
            let case = Case { mesh: mesh(1, 1, tp, 1), sequence_parallel, ..Case::new(family) };
            case.check();
            Case { micro_batches: 2, recompute: true, dropout: 0.1, ..case }.check();
        }
    }
}

#[test]
fn tensor_and_data_parallel() {
    for family in GPT2_AND_LLAMA {
        let case = Case { mesh: mesh(2, 1, 2, 1), micro_batches: 2, ..Case::new(family) };
        Case { sequence_parallel: true, ..case }.check();
        let case = Case { mesh: mesh(2, 1, 4, 1), dropout: 0.1, ..Case::new(family) };
        Case { recompute: true, ..case }.check();
    }
}

#[test]
fn pipeline_schedules() {
    for family in GPT2_AND_LLAMA {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubble] {
            let case = |pp, micro_batches| {
                let mesh = mesh(1, 1, 1, pp);
                Case { mesh, schedule, micro_batches, ..Case::new(family) }
            };
            for (pp, micro_batches) in [(2, 4), (3, 2), (4, 8), (2, 1)] {
                case(pp, micro_batches).check();
            }
            Case { recompute: true, dropout: 0.1, ..case(2, 4) }.check();
        }
        let (mesh, schedule) = (mesh(1, 1, 1, 2), ScheduleKind::Interleaved);
        for (virtual_stages, micro_batches, dropout) in [(2, 4, 0.0), (3, 2, 0.1)] {
            let case = Case { mesh, schedule, virtual_stages, ..Case::new(family) };
            Case { micro_batches, dropout, ..case }.check();
        }
    }
}

#[test]
fn data_tensor_and_pipeline_parallel() {
    for family in GPT2_AND_LLAMA {
        for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZeroBubble] {
            let case = Case { mesh: mesh(2, 1, 2, 2), micro_batches: 2, ..Case::new(family) };
            Case { schedule, sequence_parallel: true, ..case }.check();
        }
    }
}

#[test]
fn context_parallel() {
    for family in FAMILIES {
        for cp in [2, 4] {
            let case = Case { mesh: mesh(1, cp, 1, 1), ..Case::new(family) };
            case.check();
            Case { micro_batches: 2, recompute: true, dropout: 0.1, ..case }.check();
        }
    }
}

#[test]
fn context_with_other_axes() {
    for family in GPT2_AND_LLAMA {
        for (dp, cp, tp, pp) in [(2, 2, 1, 1), (1, 2, 2, 1), (1, 2, 1, 2), (1, 2, 2, 2)] {
            let case = Case { mesh: mesh(dp, cp, tp, pp), micro_batches: 2, ..Case::new(family) };
            Case { sequence_parallel: true, dropout: 0.1, ..case }.check();
        }
    }
}

const STAGES: [ZeroStage; 4] = [ZeroStage::Off, ZeroStage::One, ZeroStage::Two, ZeroStage::Three];

#[test]
fn zero_with_other_axes() {
    for family in GPT2_AND_LLAMA {
        for zero in STAGES {
            for (dp, cp, tp, pp, shard) in [
                (2, 1, 2, 1, 2),
                (2, 1, 1, 2, 2),
                (2, 2, 1, 1, 4),
                (4, 1, 1, 2, 2),
                (2, 1, 2, 2, 2),
            ] {
                let mesh = Mesh { dp, cp, tp, pp, shard };
                let case = Case { mesh, zero, micro_batches: 2, ..Case::new(family) };
                let schedule = ScheduleKind::ZeroBubble;
                let case = Case { schedule, sequence_parallel: true, ..case };
                Case { dropout: 0.1, recompute: pp == 1, ..case }.check();
            }
        }
    }
}

#[test]
fn tiled_layers() {
    for family in FAMILIES {
        Case { tiles: 2, ..Case::new(family) }.check();
        for zero in STAGES {
            let case = Case { tiles: 3, micro_batches: 2, ..Case::new(family) };
            Case { mesh: Mesh::data_parallel(2), zero, ..case }.check();
        }
        let case = Case { mesh: mesh(1, 1, 2, 2), micro_batches: 2, ..Case::new(family) };
        let schedule = ScheduleKind::ZeroBubble;
        Case { schedule, tiles: 5, sequence_parallel: true, ..case }.check();
    }
}

#[test]
fn tiled_embedding_and_head() {
    for family in GPT2_AND_LLAMA {
        for tied in [false, true] {
            let (recompute, micro_batches, on_disk) = (true, 2, true);
            let case = Case { tied, tiles: 3, micro_batches, ..Case::new(family) };
            Case { on_disk, recompute, dropout: 0.1, ..case }.check();
            Case { on_disk, mesh: Mesh::data_parallel(2), ..case }.check();
            // More tiles than some ranks have rows of the vocabulary.
            Case { mesh: mesh(1, 1, 4, 1), tiles: 4, ..case }.check();
            for zero in STAGES {
                let schedule = ScheduleKind::ZeroBubble;
                let case = Case { zero, ..case };
                Case { mesh: mesh(2, 1, 2, 2), schedule, sequence_parallel: true, ..case }.check();
                // The first and the last stage have the tied table, sharded and replicated.
                let (mesh, on_disk) =
                    (Mesh { shard: 2, ..mesh(4, 1, 1, 2) }, zero == ZeroStage::One);
                Case { mesh, tiles: 7, on_disk, recompute, ..case }.check();
            }
        }
    }
}

/// Any combination of the four axes and the other options.
fn any_case() -> impl Strategy<Value = Case> {
    let select = |all: &[usize]| proptest::sample::select(all.to_vec());
    let axis = || select(&[1, 1, 2, 2, 4]);
    let mesh = (axis(), axis(), axis(), axis())
        .prop_map(|(dp, cp, tp, pp)| mesh(dp, cp, tp, pp))
        .prop_filter("2 to 8 ranks", |mesh| (2..=8).contains(&mesh.ranks()));
    let kind = proptest::sample::select(ScheduleKind::ALL.to_vec());
    let zero = proptest::sample::select(STAGES.to_vec());
    let rest = (any::<[bool; 6]>(), kind, zero, select(&[1, 2, 4]), 1usize..4);
    (mesh, rest).prop_map(|(mesh, (flags, schedule, zero, micro_batches, tiles))| {
        let [llama, tied, sequence_parallel, recompute, hybrid, on_disk] = flags;
        // Full or hybrid sharding.
        let mesh = Mesh { shard: if hybrid { mesh.shard.min(2) } else { mesh.shard }, ..mesh };
        let (schedule, virtual_stages) = match schedule {
            ScheduleKind::Interleaved if mesh.pp == 2 => (schedule, 2),
            ScheduleKind::Interleaved => (ScheduleKind::OneFOneB, 1),
            _ => (schedule, 1),
        };
        Case {
            mesh,
            sequence_parallel,
            // Interleaved schedules need a multiple of the stages.
            micro_batches: micro_batches.max(virtual_stages).min(BATCH / mesh.dp),
            recompute,
            schedule,
            zero,
            tiles,
            tied,
            on_disk: on_disk && tiles > 1,
            virtual_stages,
            dropout: if recompute { 0.1 } else { 0.0 },
            ..Case::new(if llama { Family::Llama } else { Family::Gpt2 })
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if all_cases() { 64 } else { 6 }, ..ProptestConfig::default() })]
    #[test]
    fn any_combination(case in any_case()) {
        case.check();
    }
}
