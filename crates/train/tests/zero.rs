//! The same training however its state is shared among ranks and wherever it is kept, and what that
//! takes of their memory.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Steps, plan, together, tokens};
use regatta_comm::background::Background;
use regatta_comm::{Comm, fake, shm};
use regatta_device::reference::Reference;
use regatta_predict::axis::Axis;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, Shape};
use regatta_train::checkpoint::Kind;
use regatta_train::model::Model;
use regatta_train::offload::{Offload, Where};
use regatta_train::parallel::{Groups, Zero};
use regatta_train::state::{Bytes, Sharing};
use regatta_train::step::{Engine, Micro, Net, StepError};

const BATCH: usize = 12;
const SEQUENCE: usize = 4;
const STEPS: u64 = 20;
const LEVELS: [Zero; 3] = [Zero::Moments, Zero::Gradients, Zero::Parameters];

fn shape(family: Family) -> Shape {
    deep(family, 3)
}

fn deep(family: Family, layers: usize) -> Shape {
    Shape {
        family,
        layers,
        vocabulary: 13,
        context: SEQUENCE,
        width: 8,
        heads: 2,
        kv_heads: 1,
        feed_forward: 16,
        tied: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_epsilon: 1e-5,
        rope_base: 100.0,
    }
}

/// A training to be compared.
#[derive(Debug, Clone)]
struct Case {
    family: Family,
    ranks: usize,
    /// How many of them share state; the others repeat it.
    shard: usize,
    passes: usize,
    how: Sharing,
}

/// What a rank comes to.
struct Trained {
    losses: Vec<f64>,
    bytes: Bytes,
    /// To those that share state.
    sent: u64,
}

fn train(comm: Arc<dyn Comm>, shape: Shape, case: &Case) -> Trained {
    let Case { ranks, shard, passes, .. } = *case;
    let rank = comm.rank() as usize;
    let mesh = Mesh { shard, ..Mesh::data(ranks) };
    let groups = Groups::new(comm.clone(), mesh).unwrap();
    let net = Net::new(Model::new(shape), Box::new(Reference));
    let stage = Stage::whole(&net.model.shape);
    let mut engine = Engine::new(net, groups, stage, &case.how, 11).unwrap();
    let recompute = |step| step % 2 == 1;
    let (count, batch, length, dropout) = (STEPS, BATCH, SEQUENCE, 0.1);
    let steps = Steps { count, batch, length, passes, dropout, recompute };
    let losses = steps.train(&mut engine, &*comm, rank, ranks);
    let losses = losses.iter().map(|[loss, _]| *loss).collect();
    let sent = engine.groups.sent(Axis::Shard).all_bytes();
    Trained { losses, bytes: engine.state.bytes(), sent }
}

/// The losses of all ranks, which are the same, and the bytes of the first.
fn on(case: &Case) -> Trained {
    of(&shape(case.family), case)
}

fn of(shape: &Shape, case: &Case) -> Trained {
    first(fake::world(case.ranks as u32), shape, case)
}

fn first(world: Vec<Background>, shape: &Shape, case: &Case) -> Trained {
    let mut all = together(world, |comm| train(comm, shape.clone(), case));
    assert!(all.iter().all(|rank| rank.losses == all[0].losses), "{case:?}");
    all.swap_remove(0)
}

fn assert_same(alone: &[f64], case: &Case) {
    assert_near(alone, &on(case).losses, case);
}

fn assert_near(alone: &[f64], shared: &[f64], case: &Case) {
    assert_eq!(alone.len(), shared.len());
    for (one, many) in alone.iter().zip(shared) {
        assert!((one - many).abs() / one < 1e-10, "{case:?}: {alone:?} {shared:?}");
    }
}

fn alone(family: Family) -> Vec<f64> {
    let how = Sharing::default();
    let losses = on(&Case { family, ranks: 1, shard: 1, passes: 1, how }).losses;
    assert!(losses[STEPS as usize - 1] < losses[0] - 0.2, "nothing was learnt: {losses:?}");
    losses
}

const FAMILIES: [Family; 2] = [Family::Gpt2, Family::Llama];

#[test]
fn shared_state_has_the_losses_of_one_rank() {
    for family in FAMILIES {
        let alone = alone(family);
        for zero in LEVELS {
            for (ranks, passes) in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1), (4, 3)] {
                let how = Sharing::zero(zero);
                assert_same(&alone, &Case { family, ranks, shard: ranks, passes, how });
            }
        }
    }
}

#[test]
fn state_that_is_shared_here_and_repeated_there_has_them_too() {
    for family in FAMILIES {
        let alone = alone(family);
        for zero in LEVELS {
            for (shard, passes) in [(2, 1), (2, 3), (1, 1)] {
                let how = Sharing::zero(zero);
                assert_same(&alone, &Case { family, ranks: 4, shard, passes, how });
            }
        }
    }
}

#[test]
fn over_shared_memory_they_are_the_same() {
    let family = Family::Gpt2;
    let alone = alone(family);
    for zero in LEVELS {
        for (ranks, shard) in [(2, 2), (4, 2)] {
            let case = Case { family, ranks, shard, passes: 1, how: Sharing::zero(zero) };
            let world = shm::world(ranks as u32).unwrap();
            let trained = first(world, &shape(family), &case);
            assert_near(&alone, &trained.losses, &case);
        }
    }
}

/// Bytes that a rank must send in a step among those that share state, by level.
#[test]
fn what_is_sent_is_what_the_formulas_say() {
    for family in FAMILIES {
        for ranks in 2..=4 {
            let (all, share) = numbers(family, ranks);
            let size = size_of::<f64>();
            let room =
                |block: usize| shape(family).blocks()[block].room().next_multiple_of(32 * ranks);
            // Layers twice, the head once, the embedding once more if the head needs its table.
            let tied = if family == Family::Gpt2 { room(0) } else { 0 };
            let gathered = 2 * all - room(0) - room(4) + tied;
            for (zero, passes, sent) in [
                (Zero::Moments, 3, 2 * all),
                (Zero::Gradients, 3, 4 * all),
                (Zero::Parameters, 3, 3 * (all + gathered)),
            ] {
                let how = Sharing::zero(zero);
                let trained = on(&Case { family, ranks, shard: ranks, passes, how });
                let expected = STEPS as usize * sent / ranks * (ranks - 1) * size;
                assert_eq!(trained.sent, expected as u64, "{family:?} {zero:?} {ranks} {share}");
            }
        }
    }
}

/// A folder that is gone at the end, with all that a training was to remove.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("regatta-zero-{name}-{}", std::process::id())))
    }

    fn offload(&self, optimizer: Where, parameters: Where) -> Offload {
        Offload { optimizer, parameters, folder: self.0.clone() }
    }

    fn is_empty(&self) -> bool {
        Path::new(&self.0).read_dir().unwrap().next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn state_on_disk_has_them_too_and_is_removed() {
    let folder = Folder::new("same");
    for family in FAMILIES {
        let alone = alone(family);
        for (optimizer, parameters) in
            [(Where::Disk, Where::Device), (Where::Host, Where::Disk), (Where::Disk, Where::Disk)]
        {
            for (zero, ranks, shard, passes) in [
                (Zero::Nothing, 1, 1, 2),
                (Zero::Nothing, 2, 2, 1),
                (Zero::Moments, 3, 3, 1),
                (Zero::Parameters, 2, 2, 3),
                (Zero::Gradients, 4, 2, 1),
            ] {
                let how = Sharing { zero, offload: folder.offload(optimizer, parameters) };
                assert_same(&alone, &Case { family, ranks, shard, passes, how });
                assert!(folder.is_empty());
            }
        }
    }
}

/// Numbers of all blocks with their gaps, and of a rank's shares of them.
fn numbers(family: Family, ranks: usize) -> (usize, usize) {
    let rooms = shape(family).blocks().into_iter().map(|block| block.room());
    let shares: usize = rooms.map(|room| room.next_multiple_of(32 * ranks) / ranks).sum();
    (shares * ranks, shares)
}

/// The largest blocks that are whole at the same time: the first and the last, and two layers.
fn passing(family: Family, ranks: usize) -> usize {
    let room = |block: usize| {
        shape(family).blocks()[block].room().next_multiple_of(32 * ranks) * size_of::<f64>()
    };
    room(0) + room(4) + 2 * room(1)
}

#[test]
fn memory_is_as_the_formulas_say() {
    let size = size_of::<f64>();
    for family in FAMILIES {
        for ranks in 2..=4 {
            let (all, share) = numbers(family, ranks);
            let of = |zero| {
                let (how, passes) = (Sharing::zero(zero), 1);
                let bytes = on(&Case { family, ranks, shard: ranks, passes, how }).bytes;
                let Bytes { parameters, gradients, moments } = bytes;
                assert_eq!(moments.passing, 0);
                let kept = [parameters.kept, gradients.kept, moments.kept];
                (kept, [parameters.passing, gradients.passing])
            };
            assert_eq!(of(Zero::Moments), ([all * size, all * size, 2 * share * size], [0, 0]));
            let (kept, [none, some]) = of(Zero::Gradients);
            assert_eq!((kept, none), ([all * size, share * size, 2 * share * size], 0));
            let most = passing(family, ranks);
            assert!(some > 0 && some <= most, "{some} of gradients, not {most}");
            let (kept, [one, other]) = of(Zero::Parameters);
            assert_eq!(kept, [share * size, share * size, 2 * share * size]);
            assert!(one > 0 && one <= most && other == some, "{one} {other}, not {most}");
        }
    }
}

#[test]
fn memory_has_a_few_blocks_of_what_is_on_disk() {
    const LAYERS: usize = 9;
    let folder = Folder::new("memory");
    for (ranks, family) in [(1, Family::Gpt2), (2, Family::Llama)] {
        let shape = deep(family, LAYERS);
        let offload = folder.offload(Where::Disk, Where::Disk);
        let how = Sharing { zero: Zero::Nothing, offload };
        let bytes = of(&shape, &Case { family, ranks, shard: ranks, passes: 1, how }).bytes;
        assert_eq!((bytes.parameters.kept, bytes.moments.kept), (0, 0));
        let share = |block: usize| {
            shape.blocks()[block].room().next_multiple_of(32 * ranks) / ranks * size_of::<f64>()
        };
        // One that is worked on, one that is read ahead, one that is written behind: of a step's
        // last that may be only when the next one is.
        let few = share(0) + 2 * share(LAYERS + 1) + 3 * share(1);
        assert!(bytes.moments.passing <= 2 * few, "{bytes:?}");
        // Shared ones are whole while they are needed, besides.
        let whole = if ranks > 1 { share(0) + share(LAYERS + 1) + 2 * share(1) } else { 0 };
        assert!(bytes.parameters.passing <= few + ranks * whole, "{bytes:?}");
        let all: usize = (0..LAYERS + 2).map(share).sum();
        assert!(few < all / 2, "{few} of {all}");
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let folder = Folder::new("refused");
    std::fs::write(&folder.0, "a file").unwrap();
    let net = Net::new(Model::new(shape(Family::Gpt2)), Box::new(Reference));
    let how = Sharing { zero: Zero::Nothing, offload: folder.offload(Where::Disk, Where::Device) };
    let stage = Stage::whole(&net.model.shape);
    let error = Engine::new(net, Groups::alone(), stage, &how, 1).err().unwrap().to_string();
    assert!(error.contains("regatta-zero-refused") && error.contains("moments-0"), "{error}");
    std::fs::remove_file(&folder.0).unwrap();
}

#[test]
fn a_file_that_is_cut_off_ends_the_step_and_is_named() {
    let folder = Folder::new("cut");
    for (optimizer, parameters, name) in
        [(Where::Disk, Where::Device, "moments-0"), (Where::Device, Where::Disk, "parameters-0")]
    {
        let net = Net::new(Model::new(shape(Family::Gpt2)), Box::new(Reference));
        let stage = Stage::whole(&net.model.shape);
        let how = Sharing { zero: Zero::Nothing, offload: folder.offload(optimizer, parameters) };
        let mut engine = Engine::new(net, Groups::alone(), stage, &how, 1).unwrap();
        let (inputs, targets) =
            (tokens(SEQUENCE, 0, 0..BATCH, 0), tokens(SEQUENCE, 0, 0..BATCH, 1));
        let micro = || Micro { inputs: &inputs, targets: &targets, batch: BATCH, first: 0 };
        engine.step(&plan(0, BATCH * SEQUENCE, 0.1, false), [micro()].into_iter()).unwrap();
        // What is read comes after what was to be written.
        for kind in Kind::ALL {
            let Engine { net, state, .. } = &mut engine;
            state.fetch(&*net.device, (net.model.last(), kind), 0, &mut [0.0]).unwrap();
        }
        let file = std::fs::OpenOptions::new().write(true).open(folder.0.join(name)).unwrap();
        file.set_len(64).unwrap();
        let error =
            engine.step(&plan(1, BATCH * SEQUENCE, 0.1, true), [micro()].into_iter()).unwrap_err();
        let StepError::Store(why) = &error else { panic!("{error}") };
        assert!(why.to_string().contains(&format!("{name}: ")), "{why}");
        assert!(why.to_string().contains("cannot be read"), "{why}");
    }
}
