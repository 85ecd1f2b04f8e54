//! Runs the binary like a user, in a clean environment.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

pub mod bench;
pub mod cgroup;
pub mod disk;
pub mod fake_rank;
pub mod metrics;
pub mod parallel_cases;
pub mod process;
pub mod pty;
pub mod python;
pub mod seccomp;
pub mod train;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_model::{Machine, NodeLayout, PlacedRank, Placement};
use regatta_testbed::{Parts, assert_contains, default_signals};
use serde::Deserialize;

/// The binary under test.
pub const REGATTA: &str = env!("CARGO_BIN_EXE_regatta");

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

/// The binary in a clean environment: that of `REGATTA_TEST_BINARY` if it is set, for tests that run
/// where nothing was built.
pub fn command() -> Command {
    let binary = match std::env::var_os("REGATTA_TEST_BINARY") {
        // It runs in the folders of tests.
        Some(path) => std::path::absolute(path).unwrap(),
        None => REGATTA.into(),
    };
    clean_env(Command::new(binary))
}

/// Clears a command's environment except PATH, and resets its signals.
pub fn clean_env(mut command: Command) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let variables = [("HOME", "/home/ada"), ("USER", "ada"), ("TMPDIR", "/tmp/ada")];
    default_signals(&mut command).env_clear().env("PATH", path).envs(variables);
    command
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

    #[track_caller]
    pub fn assert_warning(&self, code: &str) {
        let warnings = &self.placement.warnings;
        assert!(warnings.iter().any(|w| w.code == code), "{code}: {warnings:?}");
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
    run_line(&format!("map {words} --json")).json()
}

#[track_caller]
pub fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:.200}"))
}

impl CommandOutput {
    /// Nothing, or the command by which a failing `env` ends the script that evaluates it.
    #[track_caller]
    fn assert_no_result(&self) {
        let stop = "case $- in *i*) false ;; *) exit 1 ;; esac;\n";
        assert!(["", stop].contains(&self.out.as_str()), "{}", self.out);
    }

    #[track_caller]
    pub fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Asserts that standard error contains all parts.
    #[track_caller]
    pub fn assert_stderr(self, parts: impl Parts) -> Self {
        assert_contains(&self.err, parts);
        self
    }

    /// Standard output of a successful command.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    /// Standard output of a successful command, which must contain all parts.
    #[track_caller]
    pub fn assert_ok(self, parts: impl Parts) -> String {
        let out = self.ok();
        assert_contains(&out, parts);
        out
    }

    /// Standard output of a successful command, as JSON.
    #[track_caller]
    pub fn json<T: serde::de::DeserializeOwned>(self) -> T {
        from_json(&self.ok())
    }

    /// The one-line error of a failed command; standard output must be empty.
    #[track_caller]
    pub fn error_line(self) -> String {
        assert_eq!(self.code, Some(1), "{} {}", self.out, self.err);
        self.assert_no_result();
        let error = self.err.strip_prefix("error: ").unwrap_or_else(|| panic!("{}", self.err));
        let error = error.strip_suffix('\n').unwrap();
        assert!(!error.contains('\n'), "more than one line: {error}");
        error.to_owned()
    }

    /// Asserts that the one-line error contains all parts.
    #[track_caller]
    pub fn assert_error(self, parts: impl Parts) {
        assert_contains(self.error_line(), parts);
    }

    /// Asserts that the first line of a usage error contains all parts.
    #[track_caller]
    pub fn assert_usage_error(self, parts: impl Parts) {
        assert_eq!(self.code, Some(2), "{} {}", self.out, self.err);
        self.assert_no_result();
        assert_contains(self.err.lines().next().unwrap().strip_prefix("error: ").unwrap(), parts);
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

    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.join(path).exists()
    }

    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        std::fs::read_to_string(self.join(path)).unwrap()
    }

    /// Path of a file, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.join(name), content).unwrap();
        self.file(name)
    }

    /// Creates an empty file. Threads that do so at the same time get different ones.
    pub fn new_file(&self, extension: &str) -> PathBuf {
        let mut paths = (0..10_000).map(|number| self.join(format!("{number}.{extension}")));
        paths.find(|path| std::fs::File::create_new(path).is_ok()).unwrap()
    }

    /// Sorted names of the entries of a folder in it; empty if that does not exist.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Sorted names of its entries.
    pub fn names(&self) -> Vec<String> {
        self.list("")
    }
}

impl AsRef<Path> for TempDir {
    fn as_ref(&self) -> &Path {
        &self.0
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
