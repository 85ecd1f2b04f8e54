//! Conformance suite for all communicators: results are compared with the reference.
//!
//! [`random_sessions`] draws collectives of every kind, dtype, size and group, blocking or in the
//! background. [`sampled_combinations`] samples all combinations of parameters.
//! `REGATTA_TEST_CASES` sets the number of cases.

mod case;
mod messages;
mod random_case;
pub mod session;
pub mod timeouts;

use std::ops::Range;
use std::time::Duration;

use proptest::prelude::prop;
use proptest::strategy::{Just, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use regatta_comm::bootstrap::{BootstrapConfig, listen};
use regatta_comm::{
    Call, CallKind, Collectives, Comm, CommError, Communicator, Counts, DType, ReduceOp, Result,
};
use regatta_wire::secret::Secret;
use rustix::process::Signal;

pub use case::{BufferSource, Case, Sizes};
use session::{Session, SessionStep};

/// Runs a function on every item, each on a thread of its own.
pub fn in_parallel<T: Send, R: Send>(all: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Runs a function on every rank, each on a thread of its own.
pub fn on_all_ranks<C: Comm, R: Send>(world: Vec<C>, work: impl Fn(&C) -> R + Sync) -> Vec<R> {
    in_parallel(world, |comm| work(&comm))
}

/// The configurations of ranks on this machine, each on a simulated host.
pub fn configs(size: u32, configure: impl Fn(&mut BootstrapConfig)) -> Vec<BootstrapConfig> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rank = |rank| {
        let mut config = BootstrapConfig::new(rank, size, "127.0.0.1", port, secret.clone());
        config.host = format!("node{rank}");
        config.join_timeout = Duration::from_secs(30);
        configure(&mut config);
        config
    };
    let mut all: Vec<BootstrapConfig> = (0..size).map(rank).collect();
    all[0].listener = Some(listener);
    all
}

/// Listens at an address as soon as no other socket does.
pub fn listen_when_free(address: std::net::SocketAddr) -> std::net::TcpListener {
    loop {
        match listen(address) {
            Ok(listener) => return listener,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Runs a call on zeroed buffers, out of place.
pub fn run_zeroed(comm: &dyn Comm, call: Call<'_>) -> Result {
    let (rank, ranks, size) = (comm.rank() as usize, comm.size() as usize, call.dtype.size());
    let has_input = !matches!(call.kind, CallKind::Broadcast | CallKind::Barrier);
    let call = Call { input: has_input.then_some(&[]), ..call };
    let (input, output) = call.lengths(rank, ranks);
    let (input, mut output) = (vec![0; input * size], vec![0; output * size]);
    comm.run(Call { input: has_input.then_some(&input), output: &mut output, ..call })
}

/// Kills this process after a time.
pub fn kill_self_after(time: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    });
}

/// The number of cases, from the environment or the default.
pub fn case_count(default: u32) -> u32 {
    std::env::var(regatta_testbed::TEST_CASES).map_or(default, |cases| cases.parse().unwrap())
}

/// Every collective and dtype, in place and out of place, on a world of each size.
pub fn all_collectives<C: Comm>(sizes: &[u32], counts: &[usize], world: impl Fn(u32) -> Vec<C>) {
    for &ranks in sizes {
        run_in_sequence(world(ranks), &cases(ranks, counts));
    }
}

/// The cases of [`all_collectives`], for a world that runs them in sequence.
pub fn cases(ranks: u32, counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, kind) in CallKind::ALL.into_iter().enumerate() {
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

fn run_in_sequence<C: Comm>(world: Vec<C>, all: &[Case]) {
    let expected: Vec<_> = all.iter().map(|case| case.expected(world.len())).collect();
    on_all_ranks(world, |comm| {
        let expected = expected.iter().map(|expected| &expected[comm.rank() as usize]);
        all.iter().zip(expected).for_each(|(case, expected)| case.run(comm, expected));
    });
}

/// A sample of all combinations of kind, dtype, op, root, size, counts and in-place mode, on 1 to 17 ranks;
/// all of them if the case count is large enough.
pub fn sampled_combinations<C: Comm>(default: u32, world: impl Fn(u32) -> Vec<C>) {
    let all: usize = (1..=17).map(|ranks| random_case::all_combinations(ranks).len()).sum();
    for ranks in 1..=17 {
        let some = random_case::sample(ranks, f64::from(case_count(default)) / all as f64);
        // In batches, because all expected results are computed in advance.
        some.chunks(500).for_each(|some| run_in_sequence(world(ranks), some));
    }
}

pub fn random_sessions<C: Comm>(default: u32, ranks: Range<u32>, world: impl Fn(u32) -> Vec<C>) {
    run_proptest(default, &session::session(ranks), |session| session.check(world(session.ranks)));
}

pub fn random_messages<C: Comm>(default: u32, ranks: Range<u32>, world: impl Fn(u32) -> Vec<C>) {
    let sequences = messages::sequence(ranks, true);
    run_proptest(default, &sequences, |sequence| sequence.check(world(sequence.ranks)));
}

/// Random groups of messages.
pub fn random_groups<C: Comm>(default: u32, ranks: Range<u32>, world: impl Fn(u32) -> Vec<C>) {
    let sequences = messages::sequence(ranks, true);
    run_proptest(default, &sequences, |sequence| sequence.check_groups(world(sequence.ranks)));
}

/// Random sessions and message groups on random node layouts: `world` gets the node of each rank.
pub fn random_node_layouts<C: Comm>(default: u32, world: impl Fn(&[u32]) -> Vec<C>) {
    let random = prop::collection::vec(0u32..4, 2..10).prop_flat_map(|nodes| {
        let ranks = nodes.len() as u32;
        let (session, sequence) =
            (session::session(ranks..ranks + 1), messages::sequence(ranks..ranks + 1, true));
        (Just(nodes), session, sequence)
    });
    run_proptest(default, &random, |(nodes, session, sequence)| {
        session.check(world(&nodes));
        sequence.check_groups(world(&nodes));
    });
}

/// Runs a property test with a deterministic seed, and shrinks a failing case.
fn run_proptest<S: Strategy>(default: u32, strategy: &S, check: impl Fn(S::Value)) {
    let cases = case_count(default);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let result = runner(config).run(strategy, |random| {
        check(random);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

fn runner(config: Config) -> TestRunner {
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// [`random_sessions`] on one of several rank processes.
pub fn random_sessions_on_rank(comm: &dyn Comm, default: u32, devices: bool) {
    let mut runner = runner(Config::default());
    let strategy = session::session(comm.size()..comm.size() + 1);
    for _ in 0..case_count(default) {
        let session: Session = strategy.new_tree(&mut runner).unwrap().current();
        session.run(comm, &session.expected_results(), devices);
    }
}

/// [`random_messages`] on one of several rank processes.
pub fn random_messages_on_rank(comm: &dyn Comm, default: u32) {
    let mut runner = runner(Config::default());
    let strategy = messages::sequence(comm.size()..comm.size() + 1, false);
    for _ in 0..case_count(default) {
        strategy.new_tree(&mut runner).unwrap().current().run(comm);
    }
}

/// [`sampled_combinations`] on one of several rank processes, blocking and, with devices, on device
/// buffers.
pub fn sampled_combinations_on_rank(comm: &dyn Comm, default: u32, devices: bool) {
    let all = random_case::all_combinations(comm.size()).len();
    for case in random_case::sample(comm.size(), f64::from(case_count(default)) / all as f64) {
        let steps = [None, Some(BufferSource::Device)].into_iter().take(1 + usize::from(devices));
        let step = |started| SessionStep { group: 0, case: case.clone(), started };
        let steps = steps.map(step).collect();
        let session = Session { ranks: comm.size(), splits: Vec::new(), steps, seed: 0 };
        session.run(comm, &session.expected_results(), devices);
    }
}

/// Some kinds with slightly more than 64 MiB; every kind if a case count is set.
pub fn large_buffers<C: Comm>(world: impl Fn(u32) -> Vec<C>) {
    let ranks = 2;
    let some = [CallKind::AllReduce, CallKind::AllGather, CallKind::AllToAll];
    let all = regatta_testbed::all_cases();
    let kinds = if all { &CallKind::ALL[..] } else { &some[..] };
    for (at, kind) in kinds.iter().copied().enumerate() {
        let blocks = if kind.has_uniform_count() { 1 } else { ranks as usize };
        let dtype = [DType::F32, DType::Bf16, DType::I64][at % 3];
        let case = Case::sum(kind, ((64 << 20) + 24) / dtype.size() / blocks);
        Case { dtype, in_place: at % 2 == 0, seed: 7, ..case }.check(world(ranks));
    }
}

/// Uneven blocks, per-pair counts, a few messages, splits and background calls, and invalid calls.
pub fn edge_cases<C: Comm>(world: impl Fn(u32) -> Vec<C>) {
    for kind in [CallKind::AllGather, CallKind::ReduceScatter, CallKind::Gather, CallKind::Scatter]
    {
        for in_place in [false, true] {
            let sizes = Sizes::PerRank(vec![3, 0, 5, 1, 64]);
            Case { root: 2, sizes, in_place, ..Case::sum(kind, 0) }.check(world(5));
        }
    }
    exchange(world(4));
    typed_calls(world(3));
    random_messages(6, 2..5, &world);
    random_sessions(6, 3..7, &world);
    count_mismatch(world(3));
    invalid_calls(world(2));
    for ranks in [1, 2, 5] {
        on_all_ranks(world(ranks), |comm| group_on_rank(comm));
    }
}

fn exchange<C: Comm>(world: Vec<C>) {
    let ranks = world.len();
    let send: Vec<Vec<usize>> =
        (0..ranks).map(|r| (0..ranks).map(|to| (r * 3 + to * 2) % 4).collect()).collect();
    on_all_ranks(world, |comm| {
        let me = comm.rank() as usize;
        let receive: Vec<usize> = send.iter().map(|s| s[me]).collect();
        let block = |from: usize, to: usize| vec![(from * 10 + to) as i16; send[from][to]];
        let to: Vec<i16> = (0..ranks).flat_map(|r| block(me, r)).collect();
        let mut from = vec![0i16; receive.iter().sum()];
        comm.all_to_all_v(&to, &send[me], &mut from, &receive).unwrap();
        let expected: Vec<i16> = (0..ranks).flat_map(|r| block(r, me)).collect();
        assert_eq!(from, expected);
    });
}

/// Typed methods that no random test covers.
fn typed_calls<C: Comm>(world: Vec<C>) {
    on_all_ranks(world, |comm| {
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
        let mut transposed = [me * 10, me * 10 + 1, me * 10 + 2];
        comm.all_to_all_in_place(&mut transposed).unwrap();
        assert_eq!(transposed, [me, 10 + me, 20 + me]);
        let (own, counts) = (vec![me; me as usize], [0, 1, 2]);
        let mut parts = vec![-1; if me == 2 { 3 } else { 0 }];
        comm.gather_v(&own, &mut parts, &counts, 2).unwrap();
        assert!(me != 2 || parts == [1, 2, 2]);
        let mut back = vec![-1; own.len()];
        comm.scatter_v(&parts, &mut back, &counts, 2).unwrap();
        assert_eq!(back, own);
        let mut sum = vec![-1; own.len()];
        comm.reduce_scatter_v(&[1, 2, 3], &mut sum, &counts, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [&[][..], &[3], &[6, 9]][me as usize]);
    });
}

/// A count mismatch is reported on all ranks.
fn count_mismatch<C: Comm>(world: Vec<C>) {
    let errors = on_all_ranks(world, |comm| {
        let send = [[0, 1, 2], [3, 4, 5], [6, 7, 8]];
        let me = comm.rank() as usize;
        let mut receive: Vec<usize> = send.iter().map(|s| s[me]).collect();
        if me == 1 {
            receive[2] += 2;
        }
        let to = vec![0i64; send[me].iter().sum()];
        let mut from = vec![0i64; receive.iter().sum()];
        let done = comm.all_to_all_v(&to, &send[me], &mut from, &receive);
        // A rank that needs nothing from the others may see the error only in its next call.
        let error = done.and_then(|()| comm.barrier()).unwrap_err();
        let exact = matches!(&error, CommError::CountMismatch { .. });
        assert!(exact || me != 1, "{error}");
        error.to_string()
    });
    for error in errors {
        for part in ["rank 2 on ", "sends 7 i64 to rank 1", "which expects 9"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

/// Invalid calls are rejected before anything is sent and leave the communicator usable.
fn invalid_calls<C: Comm>(world: Vec<C>) {
    on_all_ranks(world, |comm| {
        let (mut from, counts) = ([0u8; 3], [1, 2]);
        let wrong = comm.all_to_all_v(&[0u8; 3], &counts, &mut from, &[2, 1]).unwrap_err();
        assert!(wrong.to_string().contains("itself"), "{wrong}");
        let wrong = comm.all_gather_v(&[0u8], &mut from, &[3]).unwrap_err();
        assert!(matches!(wrong, CommError::InvalidCall { .. }), "{wrong}");
        comm.barrier().unwrap();
    });
}

/// One call of a group.
fn grouped<'a>(
    kind: CallKind,
    root: u32,
    tag: u32,
    input: Option<&'a [u8]>,
    output: &'a mut [u8],
) -> Call<'a> {
    let counts = Counts::Equal(input.map_or(output.len(), <[u8]>::len));
    let call = Call::new(kind, DType::U8, counts, output);
    Call { op: ReduceOp::Max, root, tag, input, ..call }
}

/// All collectives, and one of a sub-communicator, on a rank that is a process of its own.
pub fn check_rank_process(comm: &Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    for case in cases(size, &[0, 1, 7, 100, 5003]) {
        case.check_on_rank(comm);
    }
    let split = comm.split(Some(rank % 2), -i64::from(rank)).unwrap().unwrap();
    let mut sum = vec![rank as i64; 200_000];
    split.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let expected: u32 = (0..size).filter(|other| other % 2 == rank % 2).sum();
    assert!(sum.iter().all(|value| *value == i64::from(expected)));
}

/// A bidirectional ring of messages larger than any buffer, a message to self, two small messages
/// received out of order, and collectives.
pub fn group_on_rank(comm: &dyn Comm) {
    const LARGE: usize = (1 << 20) + 7;
    let (me, ranks) = (comm.rank(), comm.size());
    let (right, left) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let large = vec![me as u8; LARGE];
    let (mut from_left, mut from_right) = (vec![99; LARGE], vec![99; LARGE]);
    let (mut one, mut two, mut own) = ([0], [0], [0; 3]);
    let (mut most, mut first) = ([me as u8; 5], [me as u8 + 1]);
    comm.run_group(vec![
        grouped(CallKind::AllReduce, 0, 0, None, &mut most),
        grouped(CallKind::Send, right, 1, Some(&large), &mut []),
        grouped(CallKind::Send, left, 2, Some(&large), &mut []),
        grouped(CallKind::Send, right, 3, Some(&[me as u8]), &mut []),
        grouped(CallKind::Send, right, 4, Some(&[me as u8 + 100]), &mut []),
        grouped(CallKind::Send, me, 5, Some(&[1, 2, 3]), &mut []),
        grouped(CallKind::Receive, left, 4, None, &mut two),
        grouped(CallKind::Receive, left, 3, None, &mut one),
        grouped(CallKind::Receive, right, 2, None, &mut from_right),
        grouped(CallKind::Receive, left, 1, None, &mut from_left),
        grouped(CallKind::Receive, me, 5, None, &mut own),
        grouped(CallKind::Broadcast, 0, 0, None, &mut first),
    ])
    .unwrap();
    assert!(from_left.iter().all(|byte| *byte == left as u8));
    assert!(from_right.iter().all(|byte| *byte == right as u8));
    assert_eq!((one[0], two[0], own), (left as u8, left as u8 + 100, [1, 2, 3]));
    assert_eq!((most, first), ([ranks as u8 - 1; 5], [1]));
    comm.run_group(Vec::new()).unwrap();
}

/// A small message is received before a large one that was sent first with another tag.
pub fn messages_with_other_tags_overtake_large_ones<C: Comm>(world: Vec<C>) {
    let (large, small) = (vec![7u8; 3 << 20], [1u8]);
    on_all_ranks(world, |comm| match comm.rank() {
        0 => {
            comm.send(&large, 1, 1).unwrap();
            comm.send(&small, 1, 2).unwrap();
            comm.barrier().unwrap();
        }
        _ => {
            let (mut a, mut b) = (vec![0; large.len()], [0]);
            comm.receive(&mut b, 0, 2).unwrap();
            comm.receive(&mut a, 0, 1).unwrap();
            assert!(a == large && b == small);
            comm.barrier().unwrap();
        }
    });
}

/// Runs `calls` calls with `count(i)` elements on the communicator of four ranks, and more calls on
/// one of two ranks at the same time.
pub fn communicators_of_one_rank_run_concurrently<C: Comm>(
    world: Vec<C>,
    calls: usize,
    count: impl Fn(usize) -> usize + Sync,
) {
    on_all_ranks(world, |comm| {
        let pair = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..calls {
                    let mut data = vec![i as f32; count(i)];
                    comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    assert!(data.iter().all(|v| *v == 4.0 * i as f32));
                }
            });
            for i in 0..calls * 8 / 5 {
                let mut data = vec![i as i64; 1 + i * 31 % 3000];
                pair.all_reduce(&mut data, ReduceOp::Max).unwrap();
                assert!(data.iter().all(|v| *v == i as i64));
            }
        });
    });
}
