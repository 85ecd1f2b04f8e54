//! Runs the binary as a user would, away from the scheduler and settings of whoever tests.

// Every test file takes its part of this.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

pub mod bench;
pub mod disk;
pub mod job;
pub mod metrics;
pub mod splits;
pub mod train;
pub mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_model::{Layout, Machine, PlacedRank, Placement};
use serde::Deserialize;

/// The built-in systems. Written out, so that one that gets lost is missed.
pub const SYSTEMS: [&str; 10] = [
    "lumi-g",
    "frontier",
    "perlmutter",
    "polaris",
    "aurora",
    "alps",
    "jupiter",
    "marenostrum5-acc",
    "el-capitan",
    "dgx-h100",
];

/// The binary with an environment that is the same everywhere.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    clean(&mut command);
    command
}

/// Leaves a command nothing of the environment but the search path.
pub fn clean(command: &mut Command) -> &mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/home/ada")
        .env("USER", "ada")
        .env("TMPDIR", "/tmp/ada")
}

/// How a run ended.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Run {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// What `map --json` prints, as far as tests look at it.
#[derive(Debug, Deserialize)]
pub struct Plan {
    pub machines: Vec<Machine>,
    pub placement: Placement,
}

impl Plan {
    pub fn machine(&self) -> &Machine {
        &self.machines[0]
    }

    /// The only kind of node.
    pub fn layout(&self) -> &Layout {
        assert_eq!(self.placement.layouts.len(), 1);
        &self.placement.layouts[0]
    }

    pub fn ranks(&self) -> &[PlacedRank] {
        &self.layout().ranks
    }

    /// Each rank's CPUs.
    pub fn cpus(&self) -> Vec<String> {
        self.ranks().iter().map(|r| r.cpus.to_string()).collect()
    }

    pub fn warnings(&self) -> Vec<&str> {
        self.placement.warnings.iter().map(|w| w.code.as_str()).collect()
    }

    /// The fabric device of the NIC a rank got.
    pub fn fabric_of(&self, rank: &PlacedRank) -> Option<&str> {
        let name = rank.nic.as_deref()?;
        let nic = self.machine().nics.iter().find(|n| n.name == name).unwrap();
        nic.fabric_device.as_deref()
    }
}

/// Runs the binary with these words.
pub fn regatta<S: AsRef<str>>(words: &[S]) -> Run {
    command().args(words.iter().map(AsRef::as_ref)).output().unwrap().into()
}

/// Runs the binary with the words of a line.
pub fn line(words: &str) -> Run {
    regatta(&words.split_whitespace().collect::<Vec<_>>())
}

/// `regatta map WORDS --json`, read.
pub fn plan(words: &str) -> Plan {
    line(&format!("map {words} --json")).plan()
}

impl Run {
    /// The output of a run that went well.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    pub fn plan(self) -> Plan {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:.200}"))
    }

    /// The sentence of a run that failed: one line, nothing on standard output.
    pub fn sentence(self) -> String {
        assert_eq!(self.code, Some(1), "{} {}", self.out, self.err);
        assert_eq!(self.out, "");
        let sentence = self.err.strip_prefix("error: ").unwrap_or_else(|| panic!("{}", self.err));
        let sentence = sentence.strip_suffix('\n').unwrap();
        assert!(!sentence.contains('\n'), "more than a line: {sentence}");
        sentence.to_owned()
    }

    /// The first line of a command line that was refused.
    pub fn refused(self) -> String {
        assert_eq!(self.code, Some(2), "{} {}", self.out, self.err);
        assert_eq!(self.out, "");
        self.err.lines().next().unwrap().strip_prefix("error: ").unwrap().to_owned()
    }
}

/// A folder of the test's own, removed when it goes out of scope.
pub struct Folder(PathBuf);

/// Memory where there is plenty: a recorded machine has thousands of files, and some disks take
/// seconds for them.
fn fast_storage() -> PathBuf {
    const PLENTY: u64 = 1 << 30;
    let memory = Path::new("/dev/shm");
    let writable = rustix::fs::access(memory, rustix::fs::Access::WRITE_OK).is_ok();
    let free = rustix::fs::statvfs(memory).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize));
    if writable && free > PLENTY { memory.to_owned() } else { std::env::temp_dir() }
}

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-test-{}-{number}", std::process::id());
        let path = fast_storage().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file's path, for a command line.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.file(name)
    }

    /// The names of the files in it.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compares a text with the golden file of this name; `REGATTA_BLESS=1` writes the file anew.
pub fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("REGATTA_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = wanted.lines().zip(text.lines()).position(|(a, b)| a != b);
    let at = differs.unwrap_or_else(|| wanted.lines().count().min(text.lines().count()));
    assert!(
        wanted == text,
        "{name} differs from line {}:\n  wanted {:?}\n  got    {:?}\nREGATTA_BLESS=1 writes it anew",
        at + 1,
        wanted.lines().nth(at),
        text.lines().nth(at)
    );
}
