//! What ranks send in a step is what is said to be sent, to the byte and axis by axis; so is what they
//! read from disk and write there; and what they hold is what is said to be held.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{plan, together};
use regatta_comm::{Comm, fake};
use regatta_device::device::Device;
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;
use regatta_predict::axis::Axis;
use regatta_predict::cost::{Cost, Form, Holds, cost};
use regatta_predict::moved::Moved;
use regatta_predict::pipeline::Stage;
use regatta_predict::plan::{OnDisk, ParallelPlan as Planned};
use regatta_predict::shape::Shape;
use regatta_train::checkpoint::Kind;
use regatta_train::config::resolve;
use regatta_train::model::Model;
use regatta_train::offload::{Offload, Where};
use regatta_train::parallel::context::Ring;
use regatta_train::parallel::tensor::Group;
use regatta_train::parallel::{Groups, Zero};
use regatta_train::state::{Bytes, Sharing};
use regatta_train::step::{Engine, Micro, Net};

const TOKENS: usize = 8;

/// A training that keys describe.
struct Case {
    shape: Shape,
    planned: Planned,
    form: Form,
    /// Where state is that is on disk.
    folder: PathBuf,
}

/// What a rank sends in a step by axis, and what it reads and writes.
type Moves = ([u64; Axis::ALL.len()], Moved);

impl Case {
    fn new(words: &str, ranks: usize) -> Self {
        let model = format!(
            "context={TOKENS} width=16 layers=4 heads=8 feed_forward=24 vocabulary=13 bias=auto \
             tied=auto batch=8"
        );
        let words: Vec<&str> = model.split_whitespace().chain(words.split_whitespace()).collect();
        let config = resolve(None, &words).unwrap().config;
        let planned = config.validate(ranks).unwrap();
        let form = Form { real: 8, activation: 8, recompute: config.train.recompute };
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("regatta-costs-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        Self { shape: config.shape(13).unwrap(), planned, form, folder }
    }

    fn sharing(&self) -> Sharing {
        let Planned { zero, on_disk, .. } = self.planned;
        let place = |on_disk| if on_disk { Where::Disk } else { Where::Device };
        let [optimizer, parameters] = [on_disk.moments, on_disk.parameters].map(place);
        let offload = Offload { optimizer, parameters, folder: self.folder.clone() };
        Sharing { zero: Zero::level(zero).unwrap(), offload }
    }

    fn engine(&self, comm: Arc<dyn Comm>) -> Engine {
        let Planned { mesh, sequence, schedule, chunks, accumulation, .. } = self.planned;
        let groups = Groups::new(comm, mesh).unwrap();
        let tensor = Group::new(groups.tensor.clone(), sequence);
        let model = Model::tiled(self.shape.clone(), tensor.share, self.planned.tiles);
        let ring = Ring::new(groups.ring.clone(), groups.seat.context_share(&mesh));
        let device: Box<dyn Device> = match self.form.real {
            4 => Box::new(Cpu::new(1, Precision::F32)),
            _ => Box::new(Reference),
        };
        let net = Net::within(tensor, model, device).in_ring(ring);
        let how = (schedule, mesh.pp, chunks, accumulation);
        let stage = match mesh.pp {
            1 => Stage::whole(&self.shape),
            _ => Stage::new(&self.shape, how, groups.seat.pp).unwrap(),
        };
        Engine::new(net, groups, stage, &self.sharing(), 11).unwrap()
    }

    /// What a rank moves in each of three steps, whatever is done between them.
    fn moved(&self, comm: Arc<dyn Comm>) -> Vec<Moves> {
        let mut engine = self.engine(comm);
        let Planned { micro_batch, accumulation, .. } = self.planned;
        let tokens = vec![5; micro_batch * self.shape.context];
        let micro = Micro { inputs: &tokens, targets: &tokens, batch: micro_batch, first: 0 };
        let one = |step| {
            let all = |engine: &Engine| Axis::ALL.map(|axis| engine.groups.sent(axis).all_bytes());
            let (before, moved) = (all(&engine), engine.state.moved());
            let micros = std::iter::repeat_n(micro, accumulation);
            engine.step(&plan(step, 8 * TOKENS, 0.0, self.form.recompute), micros).unwrap();
            let mut sent = all(&engine);
            sent.iter_mut().zip(before).for_each(|(sent, before)| *sent -= before);
            let moved = engine.state.moved() - moved;
            engine.loss(&micro).unwrap();
            for block in engine.state.held() {
                engine.state.look(block, Kind::Parameter, |_| {}).unwrap();
            }
            (sent, moved)
        };
        (0..3).map(one).collect()
    }

    /// What a rank holds at most in three steps: parameters, gradients, moments and all else.
    fn held(&self, comm: Arc<dyn Comm>) -> [u64; 4] {
        let mut engine = self.engine(comm);
        let Planned { micro_batch, accumulation, .. } = self.planned;
        let tokens = vec![5; micro_batch * self.shape.context];
        let micro = Micro { inputs: &tokens, targets: &tokens, batch: micro_batch, first: 0 };
        for step in 0..3 {
            let micros = std::iter::repeat_n(micro, accumulation);
            engine.step(&plan(step, 8 * TOKENS, 0.0, self.form.recompute), micros).unwrap();
        }
        let Bytes { parameters, gradients, moments } = engine.state.bytes();
        let passes = engine.net.passing_bytes();
        [parameters.most(), gradients.most(), moments.most(), passes].map(|bytes| bytes as u64)
    }

    /// Every rank holds what it is said to, within a tenth.
    fn check_held(&self, about: &str) {
        let world = fake::world(self.planned.mesh.ranks() as u32);
        let all = together(world, |comm| self.held(comm));
        for (rank, held) in all.into_iter().enumerate() {
            let Holds { parameters, gradients, moments, activations, working } =
                cost(&self.shape, &self.planned, self.form, rank).unwrap().holds;
            let state = [parameters, gradients, moments].map(|held| held.most());
            let said = [state[0], state[1], state[2], activations + working];
            let near = |(held, said): (&u64, u64)| held.abs_diff(said) * 10 <= said;
            assert!(
                held.iter().zip(said).all(near),
                "{about}, rank {rank}: {held:?}, said to be {said:?}"
            );
        }
    }

    /// Every rank sends, reads and writes what it is said to.
    fn check(&self, about: &str) {
        let world = fake::world(self.planned.mesh.ranks() as u32);
        let all = together(world, |comm| self.moved(comm));
        for (rank, moved) in all.into_iter().enumerate() {
            let Cost { sends, moves, .. } =
                cost(&self.shape, &self.planned, self.form, rank).unwrap();
            let said = (Axis::ALL.map(|axis| sends.on(axis)), moves);
            assert!(
                moved.iter().all(|moved| *moved == said),
                "{about}, rank {rank}: {moved:?} {said:?}"
            );
        }
        // All that was there is gone.
        if self.planned.on_disk != OnDisk::default() {
            std::fs::remove_dir(&self.folder).unwrap();
        }
    }
}

fn check(words: &str, ranks: usize) {
    for family in ["gpt2", "llama"] {
        let kv = if family == "llama" { 4 } else { 8 };
        let words = format!("family={family} kv_heads={kv} {words}");
        Case::new(&words, ranks).check(&words);
    }
}

#[test]
fn one_axis() {
    check("micro_batch=2", 1);
    for ranks in [2, 3, 4] {
        check("batch=12 micro_batch=1", ranks);
    }
    for tp in [2, 4] {
        check(&format!("tp={tp} micro_batch=4"), tp);
        check(&format!("tp={tp} sequence=false recompute=true"), tp);
    }
    check("cp=2 micro_batch=4", 2);
    check("cp=4 recompute=true", 4);
}

#[test]
fn pipelines() {
    for kind in ["gpipe", "1f1b", "zero-bubble"] {
        check(&format!("pp=2 parallel.schedule={kind} micro_batch=2"), 2);
        check(&format!("pp=4 parallel.schedule={kind} micro_batch=1 recompute=true"), 4);
    }
    check("pp=2 parallel.schedule=interleaved chunks=2 micro_batch=2", 2);
}

#[test]
fn shared_state() {
    for zero in 1..4 {
        check(&format!("zero={zero} micro_batch=2"), 2);
        check(&format!("zero={zero} shard=2"), 4);
        check(&format!("zero={zero} cp=2 tp=2 micro_batch=4"), 4);
        check(&format!("zero={zero} pp=2 micro_batch=1"), 4);
    }
}

#[test]
fn all_together() {
    check("tp=2 pp=2 micro_batch=2", 8);
    check("cp=2 tp=2 pp=2 recompute=true", 8);
    check("zero=1 tp=2 pp=2 micro_batch=2", 8);
}

#[test]
fn tiles() {
    check("zero=3 tiles=3 micro_batch=2", 2);
    check("zero=3 tiles=2 recompute=true micro_batch=2", 2);
    check("zero=2 tiles=2", 2);
    check("zero=3 tiles=2 pp=2 parallel.schedule=zero-bubble micro_batch=1", 4);
    check("zero=3 tiles=2 tp=2 cp=2 micro_batch=4", 8);
}

/// The table of tokens and the head's matrix, which may be one.
#[test]
fn tiles_of_tables() {
    for tied in [false, true] {
        for zero in 0..4 {
            check(&format!("tied={tied} zero={zero} tiles=3 micro_batch=2"), 2);
            check(&format!("tied={tied} zero={zero} tiles=3 pp=2 micro_batch=1"), 4);
            check(&format!("tied={tied} zero={zero} tiles=2 tp=2 recompute=true"), 4);
            let shard = if zero > 0 { "shard=2" } else { "" };
            check(&format!("tied={tied} zero={zero} tiles=20 {shard}"), 4);
        }
        check(&format!("tied={tied} {BOTH} tiles=3 micro_batch=2"), 1);
        check(&format!("tied={tied} {BOTH} tiles=3 micro_batch=2"), 2);
        check(&format!("tied={tied} {BOTH} tiles=20 pp=2 recompute=true micro_batch=1"), 4);
    }
}

const BOTH: &str = "offload.optimizer=disk offload.parameters=disk";

#[test]
fn state_on_disk() {
    check("offload.optimizer=disk micro_batch=2", 1);
    check("offload.parameters=disk micro_batch=2", 1);
    check(&format!("{BOTH} recompute=true tiles=2 micro_batch=4"), 1);
    check("offload.optimizer=disk", 2);
    for zero in 0..4 {
        check(&format!("zero={zero} {BOTH} micro_batch=2"), 2);
    }
    for zero in 1..4 {
        check(&format!("zero={zero} offload.optimizer=disk shard=2"), 4);
    }
    check(&format!("zero=3 {BOTH} tiles=3 recompute=true micro_batch=2"), 2);
    check(&format!("{BOTH} tp=2 pp=2 micro_batch=2"), 4);
    check(&format!("{BOTH} pp=2 parallel.schedule=interleaved chunks=2 micro_batch=1"), 4);
    check(&format!("{BOTH} tiles=2 cp=2 pp=2 parallel.schedule=zero-bubble micro_batch=2"), 4);
}

/// A model of which most memory is for what there is much of, and whose tensors have sizes of their own:
/// one that is free is used again for any other of its size.
fn check_held(words: &str, ranks: usize) {
    for family in ["gpt2", "llama"] {
        let words = format!(
            "family={family} kv_heads=4 context=32 width=64 layers=8 heads=4 feed_forward=272 \
             vocabulary=64 {words}"
        );
        let case = Case::new(&words, ranks);
        let form = Form::new(4, case.form.recompute);
        Case { form, ..case }.check_held(&words);
    }
}

/// What is read ahead in vain would stay.
#[test]
fn memory_of_what_is_on_disk() {
    check_held(&format!("zero=3 {BOTH} micro_batch=2"), 2);
    check_held(&format!("zero=3 {BOTH} tiles=4 micro_batch=2"), 2);
}

#[test]
fn memory() {
    check_held("", 1);
    for ranks in [2, 4] {
        for zero in 0..4 {
            check_held(&format!("zero={zero} micro_batch=1"), ranks);
        }
        check_held(&format!("tp={ranks} micro_batch=2"), ranks);
        check_held(&format!("tp={ranks} sequence=false recompute=true"), ranks);
        check_held(&format!("pp={ranks} micro_batch=1"), ranks);
        check_held(&format!("pp={ranks} micro_batch=1 parallel.schedule=gpipe"), ranks);
        check_held(&format!("cp={ranks}"), ranks);
    }
    for zero in 1..4 {
        check_held(&format!("zero={zero} shard=2"), 4);
    }
    check_held("zero=3 tiles=4", 2);
    // Most of it is the table and the head.
    for tied in [false, true] {
        for how in ["zero=3 dp=2", "zero=3 dp=2 micro_batch=1", "zero=2 dp=2 pp=2", "tp=2"] {
            let words = format!("layers=4 vocabulary=1003 tiles=4 tied={tied} {how}");
            check_held(&words, if how.contains("pp") { 4 } else { 2 });
        }
        for zero in 1..4 {
            let how = format!("zero={zero} shard=2 dp=4 pp=2 micro_batch=1");
            check_held(&format!("layers=4 vocabulary=1003 tiles=4 tied={tied} {how}"), 8);
        }
    }
    check_held(&format!("{BOTH} micro_batch=1"), 1);
    check_held(&format!("{BOTH} micro_batch=1"), 2);
    check_held("tp=2 pp=2 micro_batch=2", 4);
}

/// Between the gradient of a layer's input and those of its matrices, its norms' are there already.
#[test]
fn memory_of_what_is_put_off() {
    for pp in [2, 4] {
        for recompute in [false, true] {
            let words = format!("pp={pp} parallel.schedule=zero-bubble micro_batch=1");
            check_held(&format!("{words} recompute={recompute}"), pp);
        }
        for zero in 1..4 {
            let words = format!("zero={zero} pp={pp} parallel.schedule=zero-bubble micro_batch=1");
            check_held(&words, 2 * pp);
        }
    }
    check_held("zero=3 pp=2 tiles=2 parallel.schedule=zero-bubble micro_batch=1", 4);
}
