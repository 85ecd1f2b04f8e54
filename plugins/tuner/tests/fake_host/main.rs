//! A fake host drives every exported table as NCCL does, without GPU and NCCL: in processes of their own,
//! with several threads, under random schedules.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

mod child;
mod plan;
mod plugin;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use child::{Child, Scenario};

const VERSIONS: [u32; 3] = [3, 4, 5];

/// A folder that is removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-fake-tuner-host-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A file in the folder.
    fn write(&self, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join("table.txt");
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a child process to its end; its output.
fn run(table: Option<&Path>, explain: bool, child: &Child) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env_remove("REGATTA_TUNER").env_remove("REGATTA_TUNER_EXPLAIN");
    table.map(|table| command.env("REGATTA_TUNER", table));
    if explain {
        command.env("REGATTA_TUNER_EXPLAIN", "1");
    }
    command.env(child::VARIABLE, child.to_text()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{child:?}: {}\n{text}", output.status);
    text
}

/// Runs as a child process of the other tests.
#[test]
#[ignore = "started by the other tests"]
fn child_process() {
    if let Some(child) = Child::from_env() {
        child.run();
    }
}

/// Runs a scenario with random tables, in every version.
fn run_random(scenario: Scenario, seeds: std::ops::Range<u64>) {
    for (seed, version) in seeds.flat_map(|seed| VERSIONS.map(|version| (seed, version))) {
        let folder = Folder::new();
        let path = folder.write(plan::table(seed).to_string());
        run(Some(&path), seed % 2 == 1, &Child { scenario, seed, version });
    }
}

#[test]
fn random_schedules_select_what_the_table_says() {
    run_random(Scenario::Schedule, 0..4);
}

#[test]
fn the_table_of_the_first_communicator_stays() {
    run_random(Scenario::Changes, 10..12);
}

#[test]
fn a_fork_keeps_the_table() {
    run_random(Scenario::Fork, 20..21);
}

#[test]
fn without_a_table_nothing_happens() {
    for version in VERSIONS {
        let child = Child { scenario: Scenario::Disabled, seed: 1, version };
        run(None, true, &child);
        run(Some(Path::new("")), false, &child);
    }
}

#[test]
fn a_table_that_cannot_be_used_is_reported_once() {
    let folder = Folder::new();
    let warning = |path: &Path, expected: &str| {
        for version in VERSIONS {
            let child = Child { scenario: Scenario::Damaged, seed: 1, version };
            let text = run(Some(path), false, &child);
            assert!(text.contains(expected), "{expected}: {text}");
        }
    };
    warning(&folder.0.join("none"), "none: No such file or directory");
    warning(&folder.0, "not a file");
    warning(&folder.write("regatta-nccl-tuning 9\n"), "line 1: the table has version \"9\"");
    let rows = "regatta-nccl-tuning 1\n\nall-reduce ranks=2 nodes=1 bytes=1..2 star ll\n";
    warning(&folder.write(rows), "line 3: \"star\" is not an algorithm");
    warning(&folder.write(b"\xff\xfe"), "valid UTF-8");
    warning(&folder.write("#".repeat(2 << 20)), "line 1");
    let pipe = std::ffi::CString::new(folder.0.join("pipe").to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    warning(&folder.0.join("pipe"), "not a file");
}

#[test]
fn selections_are_explained_once() {
    let folder = Folder::new();
    let table = "regatta-nccl-tuning 1
all-reduce ranks=16 nodes=2 bytes=1..1500000 tree simple channels=8
all-reduce ranks=16 nodes=2 bytes=1500001..9999999 ring ll128
broadcast ranks=16 nodes=2 bytes=1..1 ring ll
";
    let path = folder.write(table);
    for version in VERSIONS {
        let child = Child { scenario: Scenario::Explain, seed: 1, version };
        let text = run(Some(&path), true, &child);
        let lines: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("info: ")).collect();
        let expected = [
            "TUNER/Regatta: ranks=4 nodes=1: NCCL's own choices stand; the table has rows for: \
             ranks=16 nodes=2",
            "TUNER/Regatta: all-reduce of 1048576 bytes, ranks=16 nodes=2: tree simple channels=8, \
             measured to be faster than NCCL's default; NCCL would choose ring ll",
            "TUNER/Regatta: all-reduce of 2097152 bytes, ranks=16 nodes=2: NCCL's own choice, \
             ring ll, stands: ring ll128 is not available",
            "TUNER/Regatta: all-reduce of 1048576 bytes, ranks=16 nodes=2: NCCL's own choice, \
             ring ll, stands: the table is not for grouped operations",
            "TUNER/Regatta: all-gather of 1048576 bytes, ranks=16 nodes=2: NCCL's own choice, \
             ring ll, stands: the table has no row for this size",
            "TUNER/Regatta: broadcast of 8 bytes, ranks=16 nodes=2: NCCL's own choice, ring ll, \
             stands: the table has no row for this size",
        ];
        assert_eq!(lines, expected);
        assert!(!run(Some(&path), false, &child).contains("info: "), "only on request");
    }
}
