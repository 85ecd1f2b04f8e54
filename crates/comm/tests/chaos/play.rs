//! Starts the ranks of a case, has harm done to them, and sees how they end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use regatta_testbed::Cluster;
use regatta_wire::secret::Secret;

use crate::case::{Case, Fault};
use crate::check;
use crate::harm;
use crate::rank::{ARGUMENTS, FOLDER, HARM, PLACE, RANK, SEED};
use crate::words::Said;

/// Nothing takes so long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(75);

/// What is heard of the ranks.
enum Heard {
    /// It is time for harm.
    Harm,
    /// A rank has ended, and wrote this.
    End(usize, String),
}

/// A folder that is gone with this.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where the ranks of a case meet.
fn folder(case: &Case, cluster: Option<&Cluster>) -> Folder {
    let name = format!("chaos-{}-{}", std::process::id(), case.seed);
    let path = match cluster {
        Some(cluster) => cluster.shared().join(name),
        None => std::env::temp_dir().join(name),
    };
    std::fs::create_dir_all(&path).unwrap();
    for name in ["first", "again"] {
        let secret = Secret::generate().unwrap().to_hex();
        std::fs::write(path.join(format!("{name}-secret")), secret).unwrap();
    }
    Folder(path)
}

/// Plays a case; gives back in how many milliseconds the last rank had its error, or what is not as
/// it must be.
pub fn play(case: &Case, cluster: Option<&Cluster>) -> Result<u64, String> {
    let folder = folder(case, cluster);
    let mut world = World::start(case, cluster, &folder.0);
    let outcome = world.watch(case, cluster);
    world.end();
    if let Some(cluster) = cluster {
        harm::mend(cluster);
    }
    let right = outcome.and_then(|said| {
        check::all(case, &said)?;
        check::nothing_left(&folder.0)?;
        let others = said.iter().enumerate().filter(|(rank, _)| *rank != case.victim);
        Ok(others.filter_map(|(_, said)| Some(said.as_ref()?.took_ms)).max().unwrap_or(0))
    });
    right.map_err(|why| why + &complaints(&folder.0))
}

/// Where ranks panicked.
fn complaints(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let texts = files.filter(|path| path.extension().is_some_and(|ext| ext == "err"));
    let text = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let at = text.find("panicked").map(|at| text[at..].lines().take(3).collect::<String>());
        at.map(|panic| format!("\n{}: {panic}", path.display()))
    };
    texts.filter_map(text).collect()
}

/// The ranks' processes.
struct World {
    children: Vec<Child>,
    heard: Receiver<Heard>,
}

impl World {
    fn start(case: &Case, cluster: Option<&Cluster>, folder: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let (tell, heard) = channel();
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
            command.env(PLACE, format!("{:?}", case.place)).env(FOLDER, folder);
            let errors = std::fs::File::create(folder.join(format!("rank-{rank}.err"))).unwrap();
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
            let mut child = command.spawn().unwrap();
            listen(rank, &mut child, tell.clone());
            child
        };
        Self { children: (0..case.ranks()).map(child).collect(), heard }
    }

    /// Until all have ended that can.
    fn watch(
        &mut self,
        case: &Case,
        cluster: Option<&Cluster>,
    ) -> Result<Vec<Option<Said>>, String> {
        let until = Instant::now() + LIMIT;
        let mut said: Vec<Option<Said>> = vec![None; case.ranks()];
        let mut open: Vec<usize> = (0..case.ranks()).collect();
        let stays = |rank: usize| case.fault == Fault::Stopped && rank == case.victim;
        while open.iter().any(|rank| !stays(*rank)) {
            let rest = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(rest) {
                Ok(Heard::Harm) => harm::harm(case, cluster, &self.children[case.victim]),
                Ok(Heard::End(rank, text)) => {
                    open.retain(|open| *open != rank);
                    said[rank] = Said::read(&text);
                }
                Err(_) => return Err(format!("ranks {open:?} hang; the others said {said:?}")),
            }
        }
        Ok(said)
    }

    /// What is stopped, or hangs, is killed.
    fn end(&mut self) {
        for child in &mut self.children {
            if child.try_wait().unwrap().is_none() {
                let _ = harm::kill(child);
            }
            let _ = child.wait();
        }
    }
}

/// Reads what a rank writes until it ends.
fn listen(rank: usize, child: &mut Child, tell: Sender<Heard>) {
    let output = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        let mut text = String::new();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == HARM {
                let _ = tell.send(Heard::Harm);
            }
            text.push_str(&line);
            text.push('\n');
        }
        let _ = tell.send(Heard::End(rank, text));
    });
}
