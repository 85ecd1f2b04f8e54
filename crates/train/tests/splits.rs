//! The same training however ranks share it.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{KINDS, Steps, together};
use proptest::prelude::*;
use regatta_comm::{Comm, fake};
use regatta_device::reference::Reference;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{Kind, Stage};
use regatta_predict::shape::{Family, Shape};
use regatta_train::model::Model;
use regatta_train::offload::{Offload, Where};
use regatta_train::parallel::context::Ring;
use regatta_train::parallel::tensor::Group;
use regatta_train::parallel::{Groups, Zero};
use regatta_train::state::Sharing;
use regatta_train::step::{Engine, Net};

const BATCH: usize = 8;
const SEQUENCE: usize = 8;
const STEPS: u64 = 20;

fn shape(family: Family) -> Shape {
    Shape {
        family,
        vocabulary: KINDS as usize,
        context: SEQUENCE,
        width: 16,
        layers: 4,
        heads: 8,
        kv_heads: if family == Family::Llama { 4 } else { 8 },
        feed_forward: 24,
        tied: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_epsilon: 1e-5,
        rope_base: 100.0,
    }
}

/// How a training is shared, and what else may matter to that.
#[derive(Debug, Clone, Copy)]
struct Case {
    family: Family,
    mesh: Mesh,
    sequence: bool,
    passes: usize,
    recompute: bool,
    dropout: f32,
    kind: Kind,
    chunks: usize,
    zero: Zero,
    tiles: usize,
    /// Whether the head's matrix is the table of tokens.
    tied: bool,
    /// Whether parameters and moments are on disk.
    on_disk: bool,
}

impl Case {
    fn new(family: Family) -> Self {
        let mesh = Mesh::data(1);
        Self {
            family,
            mesh,
            sequence: false,
            passes: 1,
            recompute: false,
            dropout: 0.0,
            kind: Kind::OneFOneB,
            chunks: 1,
            zero: Zero::Nothing,
            tiles: 1,
            tied: family == Family::Gpt2,
            on_disk: false,
        }
    }

    fn engine(&self, comm: &Arc<dyn Comm>, folder: PathBuf) -> Engine {
        let groups = Groups::new(comm.clone(), self.mesh).unwrap();
        let tensor = Group::new(groups.tensor.clone(), self.sequence);
        let model = Model::tiled(self.shape(), tensor.share, self.tiles);
        let ring = Ring::new(groups.ring.clone(), groups.seat.context_share(&self.mesh));
        let net = Net::within(tensor, model, Box::new(Reference)).in_ring(ring);
        let Self { mesh, kind, chunks, passes, .. } = *self;
        let stage = match mesh.pp {
            1 => Stage::whole(&net.model.shape),
            pp => {
                let how = (kind, pp, chunks, passes);
                Stage::new(&net.model.shape, how, groups.seat.pp).unwrap()
            }
        };
        let place = if self.on_disk { Where::Disk } else { Where::Device };
        let offload = Offload { optimizer: place, parameters: place, folder };
        let sharing = Sharing { zero: self.zero, offload };
        Engine::new(net, groups, stage, &sharing, 11).unwrap()
    }

    fn shape(&self) -> Shape {
        Shape { tied: self.tied, ..shape(self.family) }
    }

    /// The mean losses and norms of the steps, as a rank of so many sees them.
    fn rank(self, comm: Arc<dyn Comm>, folder: PathBuf) -> Vec<[f64; 2]> {
        let mut engine = self.engine(&comm, folder);
        let copy = self.mesh.seat(comm.rank() as usize).dp;
        let recompute = if self.recompute { |_| true } else { |_| false };
        let Self { passes, dropout, .. } = self;
        let (count, batch, length) = (STEPS, BATCH, SEQUENCE);
        let steps = Steps { count, batch, length, passes, dropout, recompute };
        steps.train(&mut engine, &*comm, copy, self.mesh.dp)
    }

    /// The same of all ranks together, who must agree.
    fn run(self) -> Vec<[f64; 2]> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-splits-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let world = fake::world(self.mesh.ranks() as u32);
        let mut all = together(world, |comm| self.rank(comm, folder.clone()));
        let _ = std::fs::remove_dir_all(&folder);
        assert!(all.iter().all(|one| *one == all[0]), "ranks disagree: {self:?}\n{all:?}");
        all.swap_remove(0)
    }

    /// It is what one rank has.
    fn check(self) {
        let Self { dropout, tied, .. } = self;
        let alone = Self { dropout, tied, ..Self::new(self.family) };
        let (one, many) = (alone.run(), self.run());
        assert!(one[STEPS as usize - 1][0] < one[0][0] - 0.1, "nothing was learnt: {one:?}");
        for (step, (a, b)) in one.iter().zip(&many).enumerate() {
            for (a, b) in a.iter().zip(b) {
                let off = (a - b).abs() / a;
                assert!(off < 1e-9, "{self:?} in step {step}: {a} alone, {b}");
            }
        }
    }
}

fn tensor(tp: usize) -> Mesh {
    Mesh { tp, ..Mesh::data(1) }
}

#[test]
fn tensor_parallel() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        for (tp, sequence) in [(2, false), (2, true), (4, true), (4, false)] {
            let case = Case { mesh: tensor(tp), sequence, ..Case::new(family) };
            case.check();
            Case { passes: 2, recompute: true, dropout: 0.1, ..case }.check();
        }
    }
}

#[test]
fn tensor_and_data_parallel() {
    for family in [Family::Gpt2, Family::Llama] {
        let mesh = Mesh { tp: 2, dp: 2, shard: 2, ..Mesh::data(1) };
        Case { mesh, sequence: true, passes: 2, ..Case::new(family) }.check();
        let mesh = Mesh { tp: 4, dp: 2, shard: 2, ..Mesh::data(1) };
        Case { mesh, recompute: true, dropout: 0.1, ..Case::new(family) }.check();
    }
}

fn pipeline(pp: usize) -> Mesh {
    Mesh { pp, ..Mesh::data(1) }
}

#[test]
fn pipelines() {
    for family in [Family::Gpt2, Family::Llama] {
        for kind in [Kind::GPipe, Kind::OneFOneB, Kind::ZeroBubble] {
            for (pp, passes) in [(2, 4), (3, 2), (4, 8), (2, 1)] {
                let case = Case { mesh: pipeline(pp), kind, passes, ..Case::new(family) };
                case.check();
            }
            let mesh = pipeline(2);
            Case { mesh, kind, passes: 4, recompute: true, dropout: 0.1, ..Case::new(family) }
                .check();
        }
        let mesh = pipeline(2);
        let kind = Kind::Interleaved;
        Case { mesh, kind, chunks: 2, passes: 4, ..Case::new(family) }.check();
        Case { mesh, kind, chunks: 3, passes: 2, dropout: 0.1, ..Case::new(family) }.check();
    }
}

#[test]
fn three_axes() {
    for family in [Family::Gpt2, Family::Llama] {
        let mesh = Mesh { dp: 2, tp: 2, pp: 2, cp: 1, shard: 2 };
        for kind in [Kind::OneFOneB, Kind::ZeroBubble] {
            Case { mesh, kind, passes: 2, sequence: true, ..Case::new(family) }.check();
        }
    }
}

fn context(cp: usize) -> Mesh {
    Mesh { cp, shard: cp, ..Mesh::data(1) }
}

#[test]
fn context_parallel() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        for cp in [2, 4] {
            let case = Case { mesh: context(cp), ..Case::new(family) };
            case.check();
            Case { passes: 2, recompute: true, dropout: 0.1, ..case }.check();
        }
    }
}

#[test]
fn context_with_others() {
    for family in [Family::Gpt2, Family::Llama] {
        for (dp, cp, tp, pp) in [(2, 2, 1, 1), (1, 2, 2, 1), (1, 2, 1, 2), (1, 2, 2, 2)] {
            let mesh = Mesh { dp, cp, tp, pp, shard: dp * cp };
            Case { mesh, sequence: true, passes: 2, dropout: 0.1, ..Case::new(family) }.check();
        }
    }
}

const LEVELS: [Zero; 4] = [Zero::Nothing, Zero::Moments, Zero::Gradients, Zero::Parameters];

#[test]
fn shared_state_with_others() {
    for family in [Family::Gpt2, Family::Llama] {
        for zero in LEVELS {
            for (dp, cp, tp, pp, shard) in [
                (2, 1, 2, 1, 2),
                (2, 1, 1, 2, 2),
                (2, 2, 1, 1, 4),
                (4, 1, 1, 2, 2),
                (2, 1, 2, 2, 2),
            ] {
                let mesh = Mesh { dp, cp, tp, pp, shard };
                let (kind, sequence, passes) = (Kind::ZeroBubble, true, 2);
                let case = Case { mesh, zero, kind, sequence, passes, ..Case::new(family) };
                Case { dropout: 0.1, recompute: pp == 1, ..case }.check();
            }
        }
    }
}

#[test]
fn tiles() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        Case { tiles: 2, ..Case::new(family) }.check();
        let mesh = Mesh::data(2);
        for zero in LEVELS {
            Case { mesh, zero, tiles: 3, passes: 2, ..Case::new(family) }.check();
        }
        let mesh = Mesh { tp: 2, pp: 2, ..Mesh::data(1) };
        let kind = Kind::ZeroBubble;
        Case { mesh, kind, tiles: 5, passes: 2, sequence: true, ..Case::new(family) }.check();
    }
}

/// The table of tokens and the head's matrix, which may be one.
#[test]
fn tiles_of_tables() {
    for family in [Family::Gpt2, Family::Llama] {
        for tied in [false, true] {
            let (recompute, passes, on_disk) = (true, 2, true);
            let case = Case { tied, tiles: 3, passes, ..Case::new(family) };
            Case { on_disk, recompute, dropout: 0.1, ..case }.check();
            Case { on_disk, mesh: Mesh::data(2), ..case }.check();
            // More tiles than some ranks have kinds of tokens.
            Case { mesh: tensor(4), tiles: 4, ..case }.check();
            let mesh = Mesh { pp: 2, tp: 2, ..Mesh::data(2) };
            for zero in LEVELS {
                Case { mesh, zero, kind: Kind::ZeroBubble, sequence: true, ..case }.check();
                // Both ends of the model have the table, in shares that others repeat.
                let mesh = Mesh { pp: 2, shard: 2, ..Mesh::data(4) };
                Case { mesh, zero, tiles: 7, on_disk: zero == Zero::Moments, recompute, ..case }
                    .check();
            }
        }
    }
}

/// Any way that four axes and what goes with them can be put together.
fn any_case() -> impl Strategy<Value = Case> {
    let sizes = [1usize, 1, 2, 2, 4];
    let axis = move || proptest::sample::select(sizes.to_vec());
    let mesh = (axis(), axis(), axis(), axis())
        .prop_map(|(dp, cp, tp, pp)| Mesh { dp, cp, tp, pp, shard: dp * cp })
        .prop_filter("2 to 8 ranks", |mesh| (2..=8).contains(&mesh.ranks()));
    let kinds = Kind::ALL.to_vec();
    let zero = proptest::sample::select(LEVELS.to_vec());
    let rest = (any::<[bool; 6]>(), proptest::sample::select(kinds), zero, 0usize..3, 1usize..4);
    (mesh, rest).prop_map(
        |(mesh, ([llama, tied, sequence, recompute, hybrid, on_disk], kind, zero, more, tiles))| {
            // Shared by all with the same parameters, or by pairs of them.
            let mesh = Mesh { shard: if hybrid { mesh.shard.min(2) } else { mesh.shard }, ..mesh };
            let family = if llama { Family::Llama } else { Family::Gpt2 };
            let is_split = kind == Kind::Interleaved && mesh.pp == 2;
            let kind = if kind == Kind::Interleaved && !is_split { Kind::OneFOneB } else { kind };
            // As many passes as the share has room for, and an interleaved pipeline likes.
            let passes = [1, 2, 4][more].max(if is_split { 2 } else { 1 }).min(BATCH / mesh.dp);
            Case {
                mesh,
                sequence,
                passes,
                recompute,
                kind,
                zero,
                tiles,
                tied,
                on_disk: on_disk && tiles > 1,
                chunks: if is_split { 2 } else { 1 },
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
