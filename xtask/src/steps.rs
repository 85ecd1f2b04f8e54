//! The steps of each task; the first failure ends it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::dist::glibc;
use crate::system_packages::Available;
use crate::test_programs::{self, Build, Outcome};

/// Number of parts of `cargo xtask test`.
const PARTS: u32 = 4;

/// What clippy makes of `-D warnings`.
const CLIPPY_ARGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Says which part of `cargo xtask test` begins, and how long it usually takes on two cores.
pub fn announce(part: u32, name: &str, usual_time: &str) {
    println!("xtask: [{part}/{PARTS}] {name} (usual time: {usual_time})");
}

/// Checks formatting.
pub fn format() -> Result<()> {
    announce(2, "format", "5 s");
    run("format", cargo().args(["fmt", "--all", "--check"]))
}

/// Runs clippy with warnings as errors.
pub fn lint() -> Result<()> {
    let mut clippy = cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    announce(3, "lint", "1 min in a clean clone");
    run("lint", &mut clippy)
}

/// The compiler that clippy uses.
fn clippy_driver() -> Result<PathBuf> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(Path::new(sysroot.trim()).join("bin/clippy-driver"))
}

/// Checks the symbols of the NCCL plug-ins that the binary contains.
fn check_plugins(binary: &Path) -> Result<()> {
    let folder = Path::new("target/plugins");
    output(Command::new(binary).args(["plugin", "install"]).arg(folder))?;
    let libraries = ["net", "profiler", "tuner"].map(|kind| format!("libnccl-{kind}-regatta.so"));
    libraries.iter().try_for_each(|library| glibc::check_symbols(&folder.join(library)))
}

/// Checks the symbols of the binary, and runs all tests, also after a failure, beside the build of the
/// documentation.
pub fn tests(available: Available) -> Result<()> {
    announce(4, "tests and documentation", "12 min in a clean clone");
    let build = test_programs::build_tests()?;
    glibc::check_symbols(&build.binary)?;
    check_plugins(&build.binary)?;
    let (tested, documented) = std::thread::scope(|scope| {
        let documentation = scope.spawn(documentation);
        let tested = run_tests(build, available, &[]);
        let documented = documentation.join();
        (tested, documented.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    tested.and(documented)
}

/// Runs only the test programs and modules whose names contain one of `names`.
pub fn some_tests(available: Available, names: &[String]) -> Result<()> {
    run_tests(test_programs::build_tests()?, available, names)
}

/// Skipping a test for which everything is available is a failure.
fn run_tests(build: Build, available: Available, names: &[String]) -> Result<()> {
    let start = Instant::now();
    let variables = [
        (available.packages, "REGATTA_REQUIRE_LIBFABRIC"),
        (available.cluster, "REGATTA_REQUIRE_CLUSTER"),
    ];
    let required: Vec<(&str, &str)> =
        variables.into_iter().filter(|(is, _)| *is).map(|(_, name)| (name, "1")).collect();
    let finished = test_programs::run(build, &required, names)?;
    println!("xtask: tests done in {:.0} s", start.elapsed().as_secs_f64());
    // Again, at the end of a long log, of which a CI system may keep only the end.
    let mut failed = Vec::new();
    for Outcome { name, failures, .. } in &finished {
        if let Some(failures) = failures {
            println!("xtask: {name} failed\n{failures}");
            failed.push(name.as_str());
        }
    }
    ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

/// Runs the tests in the documentation and builds it with broken links as errors, at a low priority.
fn documentation() -> Result<()> {
    let patient = || {
        let mut nice = Command::new("nice");
        nice.args(["-n", "10"]).arg(cargo().get_program());
        nice
    };
    run("doc tests", patient().args(["test", "--quiet", "--workspace", "--doc"]))?;
    let mut docs = patient();
    docs.args(["doc", "--quiet", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    // With the wrapper and the options of the lint run, whose metadata of all libraries is used again.
    docs.env("RUSTC_WORKSPACE_WRAPPER", clippy_driver()?).env("CLIPPY_ARGS", CLIPPY_ARGS);
    run("documentation", &mut docs)
}

/// Runs the benchmarks, some of which need the binary.
pub fn bench() -> Result<()> {
    run("build", cargo().args(["build", "--quiet", "--release", "--package", "regatta"]))?;
    for name in [
        "place",
        "launch",
        "agent_startup",
        "bootstrap",
        "collectives",
        "overhead",
        "profiler",
        "train",
    ] {
        let mut bench = cargo();
        bench.args(["run", "--quiet", "--release", "--package", "regatta-benchmarks"]);
        run(name, bench.args(["--bin", name]))?;
    }
    Ok(())
}

pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The standard output of a command.
///
/// # Errors
/// If it fails, with what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", message.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn run(name: &str, command: &mut Command) -> Result<()> {
    println!("xtask: {name}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{name} failed");
    }
    println!("xtask: {name} done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
