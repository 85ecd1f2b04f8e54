//! What every communicator must do right, whatever it is made of: held against the reference.
//!
//! [`any_session`] draws many collectives of every kind, type, size and group, done at once or in
//! the background; [`product`] takes some of all combinations there are, or all of them: how many
//! is what the variable `REGATTA_TEST_CASES` says.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod blame;
mod case;
mod messages;
mod recipe;
pub mod session;

use proptest::prelude::prop;
use proptest::strategy::{Just, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use regatta_comm::{Call, Collectives, Comm, CommError, Counts, DType, Kind, OwnedCall, ReduceOp};

pub use case::{Case, Memory, Sizes};
use session::{Session, Step};

/// Runs a function on every rank, each on a thread of its own.
pub fn on_all<C: Comm, R: Send>(world: Vec<C>, work: impl Fn(&C) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            world.into_iter().map(|comm| scope.spawn(move || work(&comm))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// How many cases, unless the variable says otherwise.
pub fn how_many(usual: u32) -> u32 {
    std::env::var("REGATTA_TEST_CASES").map_or(usual, |cases| cases.parse().unwrap())
}

/// Every collective, type and reduction, in place and not, on a world of each size.
pub fn every_kind<C: Comm>(sizes: &[u32], counts: &[usize], world: impl Fn(u32) -> Vec<C>) {
    for &ranks in sizes {
        one_after_the_other(world(ranks), &cases(ranks, counts));
    }
}

/// The same as cases, for a world that does them one after the other.
pub fn cases(ranks: u32, counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        for (j, dtype) in DType::ALL.into_iter().enumerate() {
            let op = ReduceOp::ALL[(i + j) % ReduceOp::ALL.len()];
            let root = (i + j) as u32 % ranks;
            let in_place = (i + j) % 2 == 0;
            let sizes = Sizes::Equal(counts[(i + j + ranks as usize) % counts.len()]);
            cases.push(Case { kind, dtype, op, root, sizes, in_place, seed: i as u64 });
        }
    }
    cases
}

fn one_after_the_other<C: Comm>(world: Vec<C>, all: &[Case]) {
    let right: Vec<_> = all.iter().map(|case| case.right(world.len())).collect();
    on_all(world, |comm| {
        let right = right.iter().map(|right| &right[comm.rank() as usize]);
        all.iter().zip(right).for_each(|(case, right)| case.run(comm, right));
    });
}

/// Some of all combinations of kind, type, reduction, root, size, place and counts, on 1 to 17
/// ranks; all of them, if that many are asked for.
pub fn product<C: Comm>(usual: u32, world: impl Fn(u32) -> Vec<C>) {
    let all: usize = (1..=17).map(|ranks| recipe::product(ranks).len()).sum();
    let chosen = f64::from(how_many(usual)) / all as f64;
    for ranks in 1..=17 {
        let chosen = |(number, _): &(u64, _)| (*number as f64 / u64::MAX as f64) < chosen;
        let some = recipe::product(ranks).into_iter().filter(chosen);
        let some: Vec<Case> = some.map(|(_, recipe)| recipe.case(ranks as usize)).collect();
        // So many at a time, for all that is right is worked out before.
        for some in some.chunks(500) {
            one_after_the_other(world(ranks), some);
        }
    }
}

/// Sessions that chance draws from a seed.
pub fn any_session<C: Comm>(
    usual: u32,
    ranks: std::ops::Range<u32>,
    world: impl Fn(u32) -> Vec<C>,
) {
    tried(usual, &session::session(ranks), |session| session.check(world(session.ranks)));
}

/// Messages that chance draws from a seed.
pub fn any_messages<C: Comm>(
    usual: u32,
    ranks: std::ops::Range<u32>,
    world: impl Fn(u32) -> Vec<C>,
) {
    tried(usual, &messages::mail(ranks, true), |mail| mail.check(world(mail.ranks)));
}

/// Messages in groups, likewise.
pub fn any_groups<C: Comm>(usual: u32, ranks: std::ops::Range<u32>, world: impl Fn(u32) -> Vec<C>) {
    tried(usual, &messages::mail(ranks, true), |mail| mail.check_groups(world(mail.ranks)));
}

/// Sessions and groups of messages, of ranks anywhere on some nodes: `world` is given the node of
/// each rank.
pub fn any_layout<C: Comm>(usual: u32, world: impl Fn(&[u32]) -> Vec<C>) {
    let drawn = prop::collection::vec(0u32..4, 2..10).prop_flat_map(|nodes| {
        let ranks = nodes.len() as u32;
        let (session, mail) =
            (session::session(ranks..ranks + 1), messages::mail(ranks..ranks + 1, true));
        (Just(nodes), session, mail)
    });
    tried(usual, &drawn, |(nodes, session, mail)| {
        session.check(world(&nodes));
        mail.check_groups(world(&nodes));
    });
}

/// Tries what chance draws from a seed, and finds a simple one that fails if one does.
fn tried<S: Strategy>(usual: u32, strategy: &S, check: impl Fn(S::Value)) {
    let config = Config { cases: how_many(usual), failure_persistence: None, ..Config::default() };
    let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, seed);
    let tried = runner.run(strategy, |drawn| {
        check(drawn);
        Ok(())
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
}

/// The same sessions on each of the ranks that are processes of their own.
pub fn own_sessions(comm: &dyn Comm, usual: u32, devices: bool) {
    let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), seed);
    let strategy = session::session(comm.size()..comm.size() + 1);
    for _ in 0..how_many(usual) {
        let session: Session = strategy.new_tree(&mut runner).unwrap().current();
        session.play(comm, &session.plan(), devices);
    }
}

/// Messages, likewise.
pub fn own_messages(comm: &dyn Comm, usual: u32) {
    let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), seed);
    let strategy = messages::mail(comm.size()..comm.size() + 1, false);
    (0..how_many(usual)).for_each(|_| strategy.new_tree(&mut runner).unwrap().current().play(comm));
}

/// The same of all combinations, done at once and, if there are devices, on these.
pub fn own_product(comm: &dyn Comm, usual: u32, devices: bool) {
    let all = recipe::product(comm.size());
    let chosen = f64::from(how_many(usual)) / all.len() as f64;
    let some = all.into_iter().filter(|(number, _)| (*number as f64 / u64::MAX as f64) < chosen);
    for (_, recipe) in some {
        let steps = [None, Some(Memory::Device)].into_iter().take(1 + usize::from(devices));
        let step = |started| Step { group: 0, recipe: recipe.clone(), started };
        let steps = steps.map(step).collect();
        let session = Session { ranks: comm.size(), splits: Vec::new(), steps, seed: 0 };
        session.play(comm, &session.plan(), devices);
    }
}

/// 64 MiB and a little, of some kinds; of every kind if more cases are asked for.
pub fn huge<C: Comm>(world: impl Fn(u32) -> Vec<C>) {
    let ranks = 2;
    let some = [Kind::AllReduce, Kind::AllGather, Kind::AllToAll];
    let all = std::env::var_os("REGATTA_TEST_CASES").is_some();
    let kinds = if all { &Kind::ALL[..] } else { &some[..] };
    for (at, kind) in kinds.iter().copied().enumerate() {
        let whole = kind.is_whole();
        let bytes = (64 << 20) + 24;
        let dtype = [DType::F32, DType::Bf16, DType::I64][at % 3];
        let count = bytes / dtype.size() / if whole { 1 } else { ranks as usize };
        let (root, in_place) = (1, at % 2 == 0);
        let (op, sizes) = (ReduceOp::Sum, Sizes::Equal(count));
        Case { kind, dtype, op, root, sizes, in_place, seed: 7 }.check(world(ranks));
    }
}

/// Uneven parts, exchanges, messages, sub-groups and work in the background.
pub fn special<C: Comm>(world: impl Fn(u32) -> Vec<C>) {
    let kinds = [Kind::AllGather, Kind::ReduceScatter, Kind::Gather, Kind::Scatter];
    for kind in kinds {
        for in_place in [false, true] {
            let (dtype, op) = (DType::F32, ReduceOp::Sum);
            let sizes = Sizes::Each(vec![3, 0, 5, 1, 64]);
            Case { kind, dtype, op, root: 2, sizes, in_place, seed: 1 }.check(world(5));
        }
    }
    exchange(world(4));
    typed(world(3));
    two_messages(world(3));
    splits(world(6));
    background(world(3));
    unmatched(world(3));
    refused(world(2));
    for ranks in [1, 2, 5] {
        group(world(ranks));
    }
}

fn exchange<C: Comm>(world: Vec<C>) {
    let ranks = world.len();
    let send: Vec<Vec<usize>> =
        (0..ranks).map(|r| (0..ranks).map(|to| (r * 3 + to * 2) % 4).collect()).collect();
    on_all(world, |comm| {
        let me = comm.rank() as usize;
        let receive: Vec<usize> = send.iter().map(|s| s[me]).collect();
        let to: Vec<i16> =
            (0..ranks).flat_map(|r| vec![(me * 10 + r) as i16; send[me][r]]).collect();
        let mut from = vec![0i16; receive.iter().sum()];
        comm.all_to_all_v(&to, &send[me], &mut from, &receive).unwrap();
        let right: Vec<i16> =
            (0..ranks).flat_map(|r| vec![(r * 10 + me) as i16; receive[r]]).collect();
        assert_eq!(from, right);
    });
}

/// What is called with slices, and not drawn elsewhere.
fn typed<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| {
        let me = comm.rank() as i32;
        let mut sum = [0; 2];
        let sum = if me == 1 { &mut sum[..] } else { &mut [] };
        comm.reduce_into(&[me, 1], sum, ReduceOp::Sum, 1).unwrap();
        assert!(me != 1 || *sum == [3, 3]);
        let mut all = [-1; 3];
        all[me as usize] = me;
        comm.all_gather_in_place(&mut all).unwrap();
        assert_eq!(all, [0, 1, 2]);
        comm.reduce_scatter_in_place(&mut all, ReduceOp::Max).unwrap();
        assert_eq!(all[me as usize], me);
        let mut turned = [me * 10, me * 10 + 1, me * 10 + 2];
        comm.all_to_all_in_place(&mut turned).unwrap();
        assert_eq!(turned, [me, 10 + me, 20 + me]);
        let (own, counts) = (vec![me; me as usize], [0, 1, 2]);
        let mut parts = vec![-1; if me == 2 { 3 } else { 0 }];
        comm.gather_v(&own, &mut parts, &counts, 2).unwrap();
        assert!(me != 2 || parts == [1, 2, 2]);
        let mut back = vec![-1; own.len()];
        comm.scatter_v(&parts, &mut back, &counts, 2).unwrap();
        assert_eq!(back, own);
    });
}

/// What a rank sends is not what another expects: all are told who.
fn unmatched<C: Comm>(world: Vec<C>) {
    let errors = on_all(world, |comm| {
        let send = [[0, 1, 2], [3, 4, 5], [6, 7, 8]];
        let me = comm.rank() as usize;
        let mut receive: Vec<usize> = send.iter().map(|s| s[me]).collect();
        if me == 1 {
            receive[2] += 2;
        }
        let to = vec![0i64; send[me].iter().sum()];
        let mut from = vec![0i64; receive.iter().sum()];
        let done = comm.all_to_all_v(&to, &send[me], &mut from, &receive);
        // One that has all it needs may hear of it in the next.
        let error = done.and_then(|()| comm.barrier()).unwrap_err();
        let exact = matches!(&error, CommError::Unmatched { .. });
        assert!(exact || me != 1, "{error}");
        error.to_string()
    });
    for error in errors {
        let (from, to) = ("rank 2 on ", "which expects 9");
        assert!(error.contains(from) && error.contains("sends 7 i64 to rank 1"), "{error}");
        assert!(error.contains(to), "{error}");
    }
}

/// What makes no sense is refused before anything is sent, and does no harm.
fn refused<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| {
        let (mut from, counts) = ([0u8; 3], [1, 2]);
        let wrong = comm.all_to_all_v(&[0u8; 3], &counts, &mut from, &[2, 1]).unwrap_err();
        assert!(wrong.to_string().contains("itself"), "{wrong}");
        let wrong = comm.all_gather_v(&[0u8], &mut from, &[3]).unwrap_err();
        assert!(matches!(wrong, CommError::Shape { .. }), "{wrong}");
        comm.barrier().unwrap();
    });
}

fn two_messages<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| match comm.rank() {
        0 => {
            comm.send(&[1i32, 2], 1, 7).unwrap();
            comm.send(&[3i32], 1, 7).unwrap();
        }
        1 => {
            let (mut two, mut one) = ([0i32; 2], [0i32; 1]);
            comm.receive(&mut two, 0, 7).unwrap();
            comm.receive(&mut one, 0, 7).unwrap();
            assert_eq!((two, one), ([1, 2], [3]));
        }
        _ => {}
    });
}

fn splits<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| {
        for _ in 0..2 {
            let rank = comm.rank();
            let colour = (rank != 5).then_some(rank % 2);
            let part = comm.split(colour, -i64::from(rank)).unwrap();
            assert_eq!(part.is_none(), rank == 5);
            let Some(part) = part else { continue };
            let size = if rank % 2 == 0 { 3 } else { 2 };
            assert_eq!((part.size(), part.rank()), (size, size - 1 - rank / 2));
            let mut sum = [rank as i64];
            part.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [if rank % 2 == 0 { 6 } else { 4 }]);
        }
        comm.barrier().unwrap();
    });
}

fn background<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| {
        let pending: Vec<_> = (0..4)
            .map(|i| {
                let mut buffer = comm.buffer(8 * 100);
                buffer.as_mut_slice::<f64>().fill(f64::from(i));
                comm.start(OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, buffer))
            })
            .collect();
        // In its turn, after the four.
        let mut one = [1.0f32];
        comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
        assert_eq!(one, [3.0]);
        for (i, pending) in pending.into_iter().enumerate() {
            let call = pending.wait().unwrap();
            assert!(call.output.as_slice::<f64>().iter().all(|v| *v == 3.0 * i as f64));
        }
    });
}

/// A call of a group.
fn part_of_group<'a>(
    kind: Kind,
    root: u32,
    tag: u32,
    input: Option<&'a [u8]>,
    output: &'a mut [u8],
) -> Call<'a> {
    let counts = Counts::Equal(input.map_or(output.len(), <[u8]>::len));
    let (dtype, op) = (DType::U8, ReduceOp::Max);
    Call { kind, dtype, op, root, tag, counts, input, output }
}

/// A ring both ways, of messages that no way holds at once, a message to oneself, two small ones
/// that are asked for in another order than they are sent in, and collectives.
fn group<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| group_on(comm));
}

/// One rank's part in that.
pub fn group_on(comm: &dyn Comm) {
    const LARGE: usize = (1 << 20) + 7;
    let (me, ranks) = (comm.rank(), comm.size());
    let (right, left) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let large = vec![me as u8; LARGE];
    let (mut from_left, mut from_right) = (vec![99; LARGE], vec![99; LARGE]);
    let (mut one, mut two, mut own) = ([0], [0], [0; 3]);
    let (mut most, mut first) = ([me as u8; 5], [me as u8 + 1]);
    comm.run_group(vec![
        part_of_group(Kind::AllReduce, 0, 0, None, &mut most),
        part_of_group(Kind::Send, right, 1, Some(&large), &mut []),
        part_of_group(Kind::Send, left, 2, Some(&large), &mut []),
        part_of_group(Kind::Send, right, 3, Some(&[me as u8]), &mut []),
        part_of_group(Kind::Send, right, 4, Some(&[me as u8 + 100]), &mut []),
        part_of_group(Kind::Send, me, 5, Some(&[1, 2, 3]), &mut []),
        part_of_group(Kind::Receive, left, 4, None, &mut two),
        part_of_group(Kind::Receive, left, 3, None, &mut one),
        part_of_group(Kind::Receive, right, 2, None, &mut from_right),
        part_of_group(Kind::Receive, left, 1, None, &mut from_left),
        part_of_group(Kind::Receive, me, 5, None, &mut own),
        part_of_group(Kind::Broadcast, 0, 0, None, &mut first),
    ])
    .unwrap();
    assert!(from_left.iter().all(|byte| *byte == left as u8));
    assert!(from_right.iter().all(|byte| *byte == right as u8));
    assert_eq!((one[0], two[0], own), (left as u8, left as u8 + 100, [1, 2, 3]));
    assert_eq!((most, first), ([ranks as u8 - 1; 5], [1]));
    comm.run_group(Vec::new()).unwrap();
}
