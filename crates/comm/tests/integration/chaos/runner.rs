//! Starts the ranks of a case, injects the fault and collects the outcomes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use regatta_testbed::Cluster;
use regatta_wire::secret::Secret;

use super::case::{ChaosCase, Fault};
use super::check;
use super::inject;
use super::outcome::RankOutcome;
use super::rank::{ARGUMENTS, DIRECTORY, INJECT, RANK, SEED, TESTBED};

/// Longer than any case takes unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// An event of a rank process.
enum RankEvent {
    /// The fault is to be injected now.
    Inject,
    /// A rank exited, perhaps with an outcome.
    Exited(usize, Option<RankOutcome>),
}

/// A directory, removed on drop.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The directory through which the ranks of a case exchange secrets and ports.
fn temp_dir(case: &ChaosCase, cluster: Option<&Cluster>) -> TempDir {
    let name = format!("chaos-{}-{}", std::process::id(), case.seed);
    let path =
        cluster.map_or_else(std::env::temp_dir, |cluster| cluster.shared().into()).join(name);
    std::fs::create_dir_all(&path).unwrap();
    for name in ["first", "rejoin"] {
        let secret = Secret::generate().unwrap().to_hex();
        std::fs::write(path.join(format!("{name}-secret")), secret).unwrap();
    }
    TempDir(path)
}

/// Runs a case. Returns the time in milliseconds until the last rank had its error, or what is wrong.
pub fn run(case: &ChaosCase, cluster: Option<&Cluster>) -> Result<u64, String> {
    let dir = temp_dir(case, cluster);
    let mut world = World::start(case, cluster, &dir.0);
    let outcomes = world.wait(case, cluster, &dir.0);
    world.end();
    if let Some(cluster) = cluster {
        inject::repair(cluster);
    }
    let result = outcomes.and_then(|outcomes| {
        check::all(case, &outcomes)?;
        check::no_leaks(&dir.0)?;
        let others = outcomes.iter().enumerate().filter(|(rank, _)| *rank != case.victim);
        Ok(others.filter_map(|(_, outcome)| Some(outcome.as_ref()?.took_ms)).max().unwrap_or(0))
    });
    result.map_err(|why| why + &panics(&dir.0))
}

/// The panic messages of the ranks.
fn panics(dir: &Path) -> String {
    let files = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let texts = files.filter(|path| path.extension().is_some_and(|ext| ext == "err"));
    let text = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let at = text.find("panicked").map(|at| text[at..].lines().take(3).collect::<String>());
        at.map(|panic| format!("\n{}: {panic}", path.display()))
    };
    texts.filter_map(text).collect()
}

/// The rank processes.
struct World {
    children: Vec<Child>,
    events: Receiver<RankEvent>,
}

impl World {
    fn start(case: &ChaosCase, cluster: Option<&Cluster>, dir: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let (sender, events) = channel();
        let child = |rank: usize| {
            let mut command = match cluster {
                Some(cluster) => cluster.on(&case.host(rank), &program, ARGUMENTS).unwrap(),
                None => {
                    let mut command = Command::new(&program);
                    command.args(ARGUMENTS);
                    command
                }
            };
            command.env(SEED, case.seed.to_string()).env(RANK, rank.to_string());
            command.env(TESTBED, format!("{:?}", case.testbed)).env(DIRECTORY, dir);
            let errors = std::fs::File::create(dir.join(format!("rank-{rank}.err"))).unwrap();
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
            let mut child = command.spawn().unwrap();
            read_events(rank, &mut child, sender.clone());
            child
        };
        Self { children: (0..case.ranks()).map(child).collect(), events }
    }

    /// Waits until all ranks have exited that can.
    fn wait(
        &mut self,
        case: &ChaosCase,
        cluster: Option<&Cluster>,
        dir: &Path,
    ) -> Result<Vec<Option<RankOutcome>>, String> {
        let until = Instant::now() + TIMEOUT;
        let mut outcomes: Vec<Option<RankOutcome>> = vec![None; case.ranks()];
        let mut open: Vec<usize> = (0..case.ranks()).collect();
        let stays_stopped = |rank: usize| case.fault == Fault::Stopped && rank == case.victim;
        while open.iter().any(|rank| !stays_stopped(*rank)) {
            let rest = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(rest) {
                Ok(RankEvent::Inject) => inject::inject(case, cluster, &self.children, dir),
                Ok(RankEvent::Exited(rank, outcome)) => {
                    open.retain(|open| *open != rank);
                    outcomes[rank] = outcome;
                }
                Err(_) => return Err(format!("ranks {open:?} hang; outcomes: {outcomes:?}")),
            }
        }
        Ok(outcomes)
    }

    /// Kills stopped and hanging ranks.
    fn end(&mut self) {
        for child in &mut self.children {
            if child.try_wait().unwrap().is_none() {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

/// Reads the output of a rank until it exits.
fn read_events(rank: usize, child: &mut Child, sender: Sender<RankEvent>) {
    let output = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        let mut outcome = None;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == INJECT {
                let _ = sender.send(RankEvent::Inject);
            }
            outcome = outcome.or_else(|| RankOutcome::read(&line));
        }
        let _ = sender.send(RankEvent::Exited(rank, outcome));
    });
}
