//! The check of all ranks: it finds nothing where all is well, and names who is at fault.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use regatta_comm::background::Background;
use regatta_comm::error::Peer;
use regatta_comm::{Call, Comm, CommError, Kind, OwnedCall, Pending, fake};
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_train::config::{self, Config};
use regatta_train::data::{self, Places, Spec};
use regatta_train::job::smoke::{Figures, Name, Part, Smoke, Verdict};
use regatta_train::job::{Job, TrainError};

/// How a communicator spoils what this rank gets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Sums of many numbers.
    Sums,
    /// Gradients.
    Gradients,
}

/// A communicator with a fault.
struct Faulty {
    inner: Background,
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
        let spoils = self.fault == Fault::Sums && kind == Kind::AllReduce && output.len() > 1 << 12;
        self.inner.run(Call { kind, dtype, op, root, tag, counts, input, output: &mut *output })?;
        if spoils {
            output[2] ^= 1;
        }
        Ok(())
    }

    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        self.inner.run_owned(call, times)
    }

    fn run_messages(&self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        self.inner.run_messages(messages, times)
    }

    fn start(&self, call: OwnedCall) -> Pending {
        let pending = self.inner.start(call);
        if self.fault != Fault::Gradients {
            return pending;
        }
        let (spoilt, finish) = Pending::new();
        finish(pending.wait().map(|mut call| {
            call.output.as_mut_slice::<f32>()[0] += 1.0;
            call
        }));
        spoilt
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError> {
        self.inner.split(colour, key)
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}

fn config(words: &str) -> Config {
    let small = "model.family=mlp model.width=16 model.layers=1 model.heads=1 model.context=8 \
                 train.batch_per_rank=4 train.steps=10 optimizer.warmup=1 optimizer.rate=0.01";
    let words: Vec<&str> = small.split_whitespace().chain(words.split_whitespace()).collect();
    config::resolve(None, &words).unwrap().config
}

/// What a check comes to on rank 0: its parts, and whether all were as they should be.
type Checked = Result<(Vec<Part>, bool), Box<(Name, TrainError)>>;

fn one(comm: Arc<dyn Comm>, config: Config, folder: PathBuf) -> Checked {
    let dataset = data::open(&data::prepare(&Spec::default(), &Places::default()).unwrap());
    let job = Job {
        config,
        name: "test".to_owned(),
        comm: comm.clone(),
        device: Box::new(Cpu::new(1, Precision::F32)),
        threads: 1,
        kernels: String::new(),
        dataset: dataset.unwrap(),
        folder,
        run: String::new(),
    };
    let mut parts = Vec::new();
    let mut tell = |part| parts.push(part);
    let mut smoke = Smoke::new(comm.clone(), &|| false, &mut tell);
    let ended = smoke.training(job);
    let (name, works) = (smoke.under_way(), smoke.works());
    match ended {
        Ok(()) => Ok((parts, works)),
        Err(error) => {
            comm.abort(&error.to_string());
            Err(Box::new((name, error)))
        }
    }
}

/// Checks ranks that each have a fault and a configuration, or none.
fn check(faults: &[Fault], configs: &[&str], folder: &Path) -> Checked {
    let ranks =
        fake::world(faults.len() as u32).into_iter().zip(faults).zip(configs.iter().cycle());
    let start = |((inner, &fault), words): ((Background, &Fault), &&str)| {
        let (config, folder) = (config(words), folder.to_owned());
        thread::spawn(move || one(Arc::new(Faulty { inner, fault }), config, folder))
    };
    let ranks: Vec<_> = ranks.map(start).collect();
    let mut all: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    all.swap_remove(0)
}

fn folder(name: &str) -> PathBuf {
    let name = format!("regatta-smoke-{name}-{}", std::process::id());
    std::env::temp_dir().join(name)
}

#[test]
fn nothing_is_found_where_all_is_well() {
    use Name::{Agreement, AllReduce, Broadcast, Checkpoint, Same, Steps};
    for ranks in [1, 3] {
        let folder = folder(&format!("well-{ranks}"));
        let (parts, works) = check(&vec![Fault::None; ranks], &[""], &folder).unwrap();
        let names: Vec<Name> = parts.iter().map(|part| part.part).collect();
        assert_eq!(names, [Agreement, AllReduce, Broadcast, Steps, Same, Checkpoint]);
        assert!(works && parts.iter().all(|part| part.verdict == Verdict::Ok), "{parts:?}");
        let Figures::Trained { steps, first_loss, last_loss, .. } = parts[3].findings.figures
        else {
            panic!("{parts:?}")
        };
        assert!(steps == 10 && last_loss < first_loss);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "its checkpoint is gone");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn a_wrong_sum_is_told_with_its_rank() {
    let faults = [Fault::None, Fault::None, Fault::Sums];
    let (part, error) = *check(&faults, &[""], &folder("sums")).unwrap_err();
    assert_eq!(part, Name::AllReduce);
    assert!(matches!(error, TrainError::Sum { rank: 2, .. }), "{error}");
}

#[test]
fn a_rank_with_other_parameters_is_named() {
    let folder = folder("gradients");
    let faults = [Fault::None, Fault::Gradients, Fault::None];
    let (parts, works) = check(&faults, &[""], &folder).unwrap();
    assert!(!works);
    let same = parts.iter().find(|part| part.part == Name::Same).unwrap();
    let wrong = same.findings.wrong.as_deref().unwrap();
    assert!(wrong.starts_with("rank 1 on here has other parameters"), "{wrong}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_rank_that_was_told_something_else_is_named() {
    let configs = ["", "train.seed=2", ""];
    let (part, error) = *check(&[Fault::None; 3], &configs, &folder("told")).unwrap_err();
    assert_eq!(part, Name::Agreement);
    assert!(matches!(error, TrainError::Disagree { rank: 1, .. }), "{error}");
}

#[test]
fn a_loss_that_goes_up_is_told_and_the_rest_is_looked_at() {
    let folder = folder("loss");
    let words =
        "optimizer.kind=sgd optimizer.rate=100 optimizer.weight_decay=0 optimizer.momentum=0";
    let (parts, works) = check(&[Fault::None; 2], &[words], &folder).unwrap();
    assert!(!works);
    let verdicts: Vec<Verdict> = parts[3..].iter().map(|part| part.verdict).collect();
    assert_eq!(verdicts, [Verdict::Failed, Verdict::Ok, Verdict::Ok]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_told() {
    let file = folder("file");
    std::fs::write(&file, "").unwrap();
    let (parts, works) = check(&[Fault::None; 2], &[""], &file).unwrap();
    assert!(!works);
    let wrong = parts[5].findings.wrong.as_deref().unwrap();
    assert!(
        wrong.starts_with("rank 0 on here: ") && wrong.contains("regatta-smoke-file"),
        "{wrong}"
    );
    std::fs::remove_file(&file).unwrap();
}
