//! Smoke tests pass on healthy ranks and name the rank at fault.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use regatta_comm::communicator::Communicator;
use regatta_comm::error::Peer;
use regatta_comm::{Call, CallKind, Comm, CommError, Event, OwnedCall, Pending};
use regatta_device::precision::Precision;
use regatta_doctor::Verdict;
use regatta_kernels_cpu::Cpu;
use regatta_testbed::in_process;
use regatta_train::config::{self, Config};
use regatta_train::data::{self, DataDirs, DataSpec};
use regatta_train::metrics::StepSeconds;
use regatta_train::training::smoke::StateDigest;
use regatta_train::training::{TrainError, TrainingSetup};

use super::checks::{RankInfo, SmokeTest, differing, ends, mixed_kernels, oversubscribed, phases};
use super::report::{Check, CheckResult, SmokeEvent};

/// The path of a temporary folder, removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-smoke-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Fault injected on a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Large all-reduces return wrong sums.
    AllReduce,
    /// Gradients are wrong.
    Gradients,
}

/// A communicator with an injected fault.
struct Faulty {
    inner: Communicator,
    fault: Fault,
}

impl Comm for Faulty {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn peer(&self, rank: u32) -> Peer {
        self.inner.peer(rank)
    }

    fn run(&self, call: Call<'_>) -> Result<(), CommError> {
        let Call { kind, dtype, op, root, tag, counts, input, output } = call;
        let is_corrupted =
            self.fault == Fault::AllReduce && kind == CallKind::AllReduce && output.len() > 1 << 12;
        self.inner.run(Call { kind, dtype, op, root, tag, counts, input, output: &mut *output })?;
        if is_corrupted {
            output[2] ^= 1;
        }
        Ok(())
    }

    fn run_owned(&self, calls: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        self.inner.run_owned(calls, times)
    }

    fn enqueue(&self, calls: Vec<OwnedCall>, after: &[Event]) -> Pending {
        let pending = self.inner.enqueue(calls, after);
        if self.fault != Fault::Gradients {
            return pending;
        }
        let (corrupted, finish) = Pending::new();
        finish(pending.wait_group().map(|mut calls| {
            for call in &mut calls {
                call.output.as_mut_slice::<f32>()[0] += 1.0;
            }
            calls
        }));
        corrupted
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError> {
        self.inner.split(colour, key)
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }

    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }
}

fn config(args: &str) -> Config {
    let small = "model.family=mlp model.hidden_size=16 model.num_layers=1 model.num_heads=1 \
                 model.seq_len=8 train.batch_per_replica=4 train.steps=10 optimizer.warmup_steps=1 optimizer.lr=0.01";
    let words: Vec<&str> = small.split_whitespace().chain(args.split_whitespace()).collect();
    config::resolve(None, &words).unwrap().config
}

/// The checks on rank 0 and whether all passed, or the check that could not be completed.
type SmokeResult = Result<(Vec<CheckResult>, bool), (Check, anyhow::Error)>;

fn run_rank(comm: Arc<dyn Comm>, config: Config, folder: PathBuf) -> SmokeResult {
    let setup = TrainingSetup {
        config,
        name: "test".to_owned(),
        comm: comm.clone(),
        device_comm: None,
        device: Box::new(Cpu::new(1, Precision::F32)),
        threads: 1,
        kernels: String::new(),
        gemm_flops_per_second: 0.0,
        dataset: data::open(&DataSpec::default(), &DataDirs::default()).unwrap(),
        folder,
        run: String::new(),
        require_checkpoint: false,
    };
    let mut checks = Vec::new();
    let mut emit = |event| {
        checks.extend(if let SmokeEvent::Check(check) = event { Some(*check) } else { None })
    };
    let mut smoke = SmokeTest::new(comm.clone(), &|| false, &mut emit);
    let result = smoke.training(setup);
    let (current, passed) = (smoke.current, smoke.passed);
    result.map(|()| (checks, passed)).map_err(|error| {
        comm.abort(&error.to_string());
        (current, error)
    })
}

/// Runs a smoke test on ranks with these faults and configurations.
fn smoke_test(faults: &[Fault], configs: &[&str], folder: &TempDir) -> SmokeResult {
    let ranks =
        in_process::world(faults.len() as u32).into_iter().zip(faults).zip(configs.iter().cycle());
    let start = |((inner, &fault), args): ((Communicator, &Fault), &&str)| {
        let (config, folder) = (config(args), folder.0.clone());
        thread::spawn(move || run_rank(Arc::new(Faulty { inner, fault }), config, folder))
    };
    let ranks: Vec<_> = ranks.map(start).collect();
    let mut all: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    all.swap_remove(0)
}

#[test]
fn all_checks_pass_on_healthy_ranks() {
    use Check::{Agreement, AllReduce, Broadcast, Checkpoint, Consistency, Steps};
    for ranks in [1, 3] {
        let folder = TempDir::new();
        let (checks, passed) = smoke_test(&vec![Fault::None; ranks], &[""], &folder).unwrap();
        let names: Vec<Check> = checks.iter().map(|check| check.check).collect();
        assert_eq!(names, [Agreement, AllReduce, Broadcast, Steps, Consistency, Checkpoint]);
        assert!(passed && checks.iter().all(|c| c.status == Verdict::Pass), "{checks:?}");
        let steps = &checks[3].details["steps"];
        let [first, last] = ["first_loss", "last_loss"].map(|name| steps[name].as_f64().unwrap());
        assert!(steps["steps"] == 10 && last < first, "{steps}");
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "the checkpoint is removed");
    }
}

#[test]
fn a_wrong_all_reduce_is_reported_with_its_rank() {
    let faults = [Fault::None, Fault::None, Fault::AllReduce];
    let (checks, passed) = smoke_test(&faults, &[""], &TempDir::new()).unwrap();
    assert!(!passed);
    let last = checks.last().unwrap();
    assert_eq!(last.check, Check::AllReduce, "the remaining checks are skipped");
    let error = last.error.as_deref().unwrap();
    assert!(error.starts_with("rank 2 on localhost received "), "{error}");
}

#[test]
fn a_rank_with_different_parameters_is_named() {
    let faults = [Fault::None, Fault::Gradients, Fault::None];
    let (checks, passed) = smoke_test(&faults, &[""], &TempDir::new()).unwrap();
    assert!(!passed);
    let consistency = checks.iter().find(|c| c.check == Check::Consistency).unwrap();
    let error = consistency.error.as_deref().unwrap();
    assert!(error.starts_with("rank 1 on localhost has different parameters"), "{error}");
}

#[test]
fn a_rank_with_a_different_configuration_is_named() {
    let configs = ["", "train.seed=2", ""];
    let (check, error) = smoke_test(&[Fault::None; 3], &configs, &TempDir::new()).unwrap_err();
    assert_eq!(check, Check::Agreement);
    let error = error.downcast_ref();
    assert!(matches!(error, Some(TrainError::RankMismatch { rank: 1, .. })), "{error:?}");
}

#[test]
fn a_rising_loss_fails_and_the_remaining_checks_run() {
    let args = "optimizer.name=sgd optimizer.lr=100 optimizer.weight_decay=0 optimizer.momentum=0";
    let (checks, passed) = smoke_test(&[Fault::None; 2], &[args], &TempDir::new()).unwrap();
    assert!(!passed);
    let statuses: Vec<Verdict> = checks[3..].iter().map(|check| check.status).collect();
    assert_eq!(statuses, [Verdict::Fail, Verdict::Pass, Verdict::Pass]);
}

#[test]
fn an_unwritable_checkpoint_is_reported() {
    let file = TempDir::new();
    std::fs::write(&file.0, "").unwrap();
    let (checks, passed) = smoke_test(&[Fault::None; 2], &[""], &file).unwrap();
    assert!(!passed);
    let error = checks[5].error.as_deref().unwrap();
    let path = file.0.display().to_string();
    assert!(error.starts_with("rank 0 on localhost: ") && error.contains(&path), "{error}");
    std::fs::remove_file(&file.0).unwrap();
}

fn info(rank: u32, host: &str, cpus: &str, threads: usize, kernels: &str) -> RankInfo {
    let (host, kernels) = (host.to_owned(), kernels.to_owned());
    RankInfo { rank, host, cpus: cpus.parse().unwrap(), threads, kernels }
}

#[test]
fn ranks_with_enough_cores_and_equal_kernels_are_not_noted() {
    let own = [info(0, "a", "0-1", 2, "avx512"), info(1, "a", "2-3", 2, "avx512")];
    let on_two_hosts = [info(0, "a", "0-1", 2, "avx512"), info(1, "b", "0-1", 2, "avx512")];
    let enough = [info(0, "a", "0-3", 2, "avx512"), info(1, "a", "0-3", 2, "avx512")];
    for ranks in [&own[..], &on_two_hosts, &enough, &[]] {
        assert_eq!(oversubscribed(ranks), Vec::<String>::new());
        assert_eq!(mixed_kernels(ranks), None);
    }
}

#[test]
fn oversubscribed_ranks_are_noted() {
    let mut all: Vec<RankInfo> = (0..3).map(|rank| info(rank, "a", "0-1", 1, "avx2")).collect();
    all.push(info(3, "a", "2", 1, "avx2"));
    let [note] = &oversubscribed(&all)[..] else { panic!("{:?}", oversubscribed(&all)) };
    assert!(note.starts_with("ranks 0-2 on a run 3 threads on cores 0-1"));
}

#[test]
fn a_rank_with_different_kernels_is_noted() {
    let mut all: Vec<_> = (0..4).map(|rank| info(rank, "a", "0-3", 1, "avx512")).collect();
    all[0].kernels = "avx2".to_owned();
    let note = mixed_kernels(&all).unwrap();
    assert!(note.starts_with("rank 0 on a has avx2, most ranks have avx512"), "{note}");
}

/// The error about ranks with these tensor-parallel ranks and digests.
fn error_about(all: &[(usize, &str)]) -> Option<String> {
    let digest = |(tp, sha256): &(usize, &str)| StateDigest {
        replica_key: (*tp, 0, 0),
        sha256: (*sha256).to_owned(),
    };
    let names: Vec<String> = (0..all.len()).map(|n| format!("rank {n} on n{n}")).collect();
    differing(&names, &all.iter().map(digest).collect::<Vec<_>>())
}

#[test]
fn ranks_that_differ_from_the_majority_are_named() {
    let message = |all: &[&'static str]| {
        error_about(&all.iter().map(|digest| (0, *digest)).collect::<Vec<_>>())
    };
    assert_eq!(message(&["a"; 5]), None);
    let one = message(&["a", "b", "b"]).unwrap();
    assert!(one.starts_with("rank 0 on n0 has different parameters"), "{one}");
    let two = message(&["a", "b"]).unwrap();
    assert!(two.starts_with("rank 1 on n1 has"), "{two}");
    let many = message(&["a", "a", "a", "a", "a", "a", "b", "c", "d", "e", "f"]).unwrap();
    assert!(many.contains("rank 9 on n9 and 1 more have"), "{many}");
}

#[test]
fn ranks_with_different_shards_may_differ() {
    assert_eq!(error_about(&[(0, "a"), (1, "b"), (0, "a"), (1, "b")]), None);
    let error = error_about(&[(0, "a"), (1, "b"), (0, "b"), (1, "b")]).unwrap();
    assert!(error.starts_with("rank 2 on n2 has"), "{error}");
}

#[test]
fn losses_are_compared_by_the_means_of_their_ends() {
    assert_eq!(ends(&[2.0]), (2.0, 2.0));
    assert_eq!(ends(&[4.0, 3.0]), (4.0, 3.0));
    let falling: Vec<f64> = (0..10).map(|step| 10.0 - f64::from(step)).collect();
    assert_eq!(ends(&falling), (9.5, 1.5));
}

#[test]
fn phases_of_a_step_are_in_percent() {
    let seconds = StepSeconds { step: 0.01, forward: 0.004, backward: 0.006, ..Default::default() };
    assert_eq!(phases(&seconds), "10.0 ms/step: forward 40%, backward 60%");
}
