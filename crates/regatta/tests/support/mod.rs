//! Runs the binary like a user, in a clean environment.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

pub mod bench;
pub mod disk;
pub mod job;
pub mod metrics;
pub mod splits;
pub mod sysfs;
pub mod train;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_model::{Machine, NodeLayout, PlacedRank, Placement};
use serde::Deserialize;

/// The built-in systems, listed so that a missing one is noticed.
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

/// The binary in a clean environment.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    clean_env(&mut command);
    command
}

/// Clears a command's environment except PATH.
pub fn clean_env(command: &mut Command) -> &mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/home/ada")
        .env("USER", "ada")
        .env("TMPDIR", "/tmp/ada")
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The output of `map --json`, as far as tests use it.
#[derive(Debug, Deserialize)]
pub struct MapOutput {
    pub machines: Vec<Machine>,
    pub placement: Placement,
}

impl MapOutput {
    pub fn machine(&self) -> &Machine {
        &self.machines[0]
    }

    /// The only layout.
    pub fn layout(&self) -> &NodeLayout {
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

    /// Fabric device of a rank's NIC.
    pub fn fabric_of(&self, rank: &PlacedRank) -> Option<&str> {
        let name = rank.nic.as_deref()?;
        let nic = self.machine().nics.iter().find(|n| n.name == name).unwrap();
        nic.fabric_device.as_deref()
    }
}

/// Runs the binary with these arguments.
pub fn regatta<S: AsRef<str>>(words: &[S]) -> CommandOutput {
    command().args(words.iter().map(AsRef::as_ref)).output().unwrap().into()
}

/// Runs the binary with whitespace-separated arguments.
pub fn run_line(words: &str) -> CommandOutput {
    regatta(&words.split_whitespace().collect::<Vec<_>>())
}

/// The output of `regatta map WORDS --json`.
pub fn map_json(words: &str) -> MapOutput {
    run_line(&format!("map {words} --json")).map_output()
}

impl CommandOutput {
    /// Standard output of a successful command.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    pub fn map_output(self) -> MapOutput {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:.200}"))
    }

    /// The one-line error of a failed command; standard output must be empty.
    pub fn error_line(self) -> String {
        assert_eq!(self.code, Some(1), "{} {}", self.out, self.err);
        assert_eq!(self.out, "");
        let error = self.err.strip_prefix("error: ").unwrap_or_else(|| panic!("{}", self.err));
        let error = error.strip_suffix('\n').unwrap();
        assert!(!error.contains('\n'), "more than one line: {error}");
        error.to_owned()
    }

    /// The first line of a usage error.
    pub fn usage_error(self) -> String {
        assert_eq!(self.code, Some(2), "{} {}", self.out, self.err);
        assert_eq!(self.out, "");
        self.err.lines().next().unwrap().strip_prefix("error: ").unwrap().to_owned()
    }
}

/// A temporary folder, removed on drop.
pub struct TempDir(PathBuf);

/// /dev/shm if it has enough space: a recorded machine has thousands of files, which take seconds on
/// some disks.
fn fast_storage() -> PathBuf {
    const ENOUGH: u64 = 1 << 30;
    let memory = Path::new("/dev/shm");
    let writable = rustix::fs::access(memory, rustix::fs::Access::WRITE_OK).is_ok();
    let free = rustix::fs::statvfs(memory).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize));
    if writable && free > ENOUGH { memory.to_owned() } else { std::env::temp_dir() }
}

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-test-{}-{number}", std::process::id());
        let path = fast_storage().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of a file, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.file(name)
    }

    /// Sorted file names.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compares a text with a golden file; `REGATTA_BLESS=1` updates it.
pub fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("REGATTA_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(text.lines()).position(|(a, b)| a != b);
    let at = differs.unwrap_or_else(|| expected.lines().count().min(text.lines().count()));
    assert!(
        expected == text,
        "{name} differs from line {}:\n  expected {:?}\n  actual   {:?}\nREGATTA_BLESS=1 updates it",
        at + 1,
        expected.lines().nth(at),
        text.lines().nth(at)
    );
}
