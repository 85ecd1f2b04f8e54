//! Smoke tests pass on healthy ranks and name the rank at fault.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use regatta_comm::communicator::Communicator;
use regatta_comm::error::Peer;
use regatta_comm::{Call, CallKind, Comm, CommError, Event, OwnedCall, Pending};
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_testbed::in_process;
use regatta_train::config::Config;
use regatta_train::data::DataSpec;
use regatta_train::training::TrainError;
use regatta_train::training::smoke::{Check, CheckResult, CheckStatus, Details, SmokeTest};

use crate::common::{self, TempDir};

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
    common::config(&[small, args])
}

/// The checks on rank 0 and whether all passed, or the check that could not be completed.
type SmokeResult = Result<(Vec<CheckResult>, bool), Box<(Check, TrainError)>>;

fn run_rank(comm: Arc<dyn Comm>, config: Config, folder: PathBuf) -> SmokeResult {
    let device = Box::new(Cpu::new(1, Precision::F32));
    let setup = common::training_setup(&config, &DataSpec::default(), comm.clone(), device, folder)
        .unwrap();
    let mut checks = Vec::new();
    let mut emit = |check| checks.push(check);
    let mut smoke = SmokeTest::new(comm.clone(), &|| false, &mut emit);
    let result = smoke.training(setup);
    let (current, passed) = (smoke.current(), smoke.passed());
    result.map(|()| (checks, passed)).map_err(|error| {
        comm.abort(&error.to_string());
        Box::new((current, error))
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
        assert!(passed && checks.iter().all(|c| c.status == CheckStatus::Ok), "{checks:?}");
        let Details::Steps { steps, first_loss, last_loss, .. } = checks[3].findings.details else {
            panic!("{checks:?}")
        };
        assert!(steps == 10 && last_loss < first_loss);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "the checkpoint is removed");
    }
}

#[test]
fn a_wrong_all_reduce_is_reported_with_its_rank() {
    let faults = [Fault::None, Fault::None, Fault::AllReduce];
    let (check, error) = *smoke_test(&faults, &[""], &TempDir::new()).unwrap_err();
    assert_eq!(check, Check::AllReduce);
    assert!(matches!(error, TrainError::WrongAllReduce { rank: 2, .. }), "{error}");
}

#[test]
fn a_rank_with_different_parameters_is_named() {
    let faults = [Fault::None, Fault::Gradients, Fault::None];
    let (checks, passed) = smoke_test(&faults, &[""], &TempDir::new()).unwrap();
    assert!(!passed);
    let consistency = checks.iter().find(|c| c.check == Check::Consistency).unwrap();
    let error = consistency.findings.error.as_deref().unwrap();
    assert!(error.starts_with("rank 1 on localhost has different parameters"), "{error}");
}

#[test]
fn a_rank_with_a_different_configuration_is_named() {
    let configs = ["", "train.seed=2", ""];
    let (check, error) = *smoke_test(&[Fault::None; 3], &configs, &TempDir::new()).unwrap_err();
    assert_eq!(check, Check::Agreement);
    assert!(matches!(error, TrainError::RankMismatch { rank: 1, .. }), "{error}");
}

#[test]
fn a_rising_loss_fails_and_the_remaining_checks_run() {
    let args = "optimizer.name=sgd optimizer.lr=100 optimizer.weight_decay=0 optimizer.momentum=0";
    let (checks, passed) = smoke_test(&[Fault::None; 2], &[args], &TempDir::new()).unwrap();
    assert!(!passed);
    let statuses: Vec<CheckStatus> = checks[3..].iter().map(|check| check.status).collect();
    assert_eq!(statuses, [CheckStatus::Failed, CheckStatus::Ok, CheckStatus::Ok]);
}

#[test]
fn an_unwritable_checkpoint_is_reported() {
    let file = TempDir::new();
    std::fs::write(&file.0, "").unwrap();
    let (checks, passed) = smoke_test(&[Fault::None; 2], &[""], &file).unwrap();
    assert!(!passed);
    let error = checks[5].findings.error.as_deref().unwrap();
    let path = file.0.display().to_string();
    assert!(error.starts_with("rank 0 on localhost: ") && error.contains(&path), "{error}");
    std::fs::remove_file(&file.0).unwrap();
}
