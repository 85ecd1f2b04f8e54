//! The steps of each task; the first failure ends it.

use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::dist::glibc;
use crate::test_programs;

/// Number of parts of `cargo xtask test`.
const PARTS: u32 = 5;

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
    announce(3, "lint", "3 min in a clean clone");
    run("lint", &mut clippy)
}

/// Checks the symbols of the NCCL plug-ins that the binary contains.
fn check_plugins(binary: &Path) -> Result<()> {
    let folder = Path::new("target/plugins");
    let mut install = Command::new(binary);
    let output = install.args(["plugin", "install"]).arg(folder).output();
    let output = output.with_context(|| binary.display().to_string())?;
    ensure!(output.status.success(), "regatta plugin install failed");
    let libraries = ["net", "profiler", "tuner"].map(|kind| format!("libnccl-{kind}-regatta.so"));
    libraries.iter().try_for_each(|library| glibc::check_symbols(&folder.join(library)))
}

/// Checks the symbols of the binary, and runs all tests, also after a failure. With all packages installed,
/// skipping a multi-host test is a failure.
pub fn tests(complete: bool) -> Result<()> {
    announce(4, "tests", "15 min");
    let start = Instant::now();
    let required: &[(&str, &str)] =
        if complete { &[("REGATTA_REQUIRE_CLUSTER", "1")] } else { &[] };
    let build = test_programs::build(&mut cargo())?;
    glibc::check_symbols(&build.binary)?;
    check_plugins(&build.binary)?;
    let failed = test_programs::run(required, build)?;
    let doc_tests = run("doc tests", cargo().args(["test", "--quiet", "--workspace", "--doc"]));
    if !failed.is_empty() {
        // Again, at the end of a long log, of which a CI system may keep only the end.
        failed
            .iter()
            .for_each(|program| println!("xtask: {} failed\n{}", program.name, program.failures));
        let names: Vec<_> = failed.iter().map(|program| program.name.as_str()).collect();
        bail!("tests failed: {}", names.join(", "));
    }
    println!("xtask: tests done in {:.0} s", start.elapsed().as_secs_f64());
    doc_tests
}

/// Builds the documentation with broken links as errors.
pub fn docs() -> Result<()> {
    let mut docs = cargo();
    docs.args(["doc", "--quiet", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    announce(5, "documentation", "1 min");
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

/// Injects faults into ranks that run collectives (`--comm`), into training runs (`--train`) or into
/// launched jobs. A failure prints its seed, which reproduces it.
pub fn chaos(suite: Option<&str>, cases: u64, seed: u64) -> Result<()> {
    println!("xtask: {cases} cases from seed {seed}");
    let mut chaos = cargo();
    match suite {
        Some("--comm") => chaos
            .args(["test", "--package", "regatta-comm", "--test", "integration", "chaos::"])
            .args(["--", "--nocapture"])
            .env("REGATTA_REQUIRE_CLUSTER", "1"),
        Some(_) => chaos
            .args(["test", "--package", "regatta", "--test", "training", "train_chaos::"])
            .args(["--", "--nocapture"]),
        // A release build, because a rank writes 1 GiB.
        None => chaos
            .args(["test", "--release", "--package", "regatta", "--test", "cluster"])
            .args(["--", "--nocapture", "injected_faults"])
            .envs([("REGATTA_REQUIRE_CLUSTER", "1"), ("REGATTA_CHAOS_MIB", "1024")]),
    };
    chaos.env("REGATTA_CHAOS_CASES", cases.to_string());
    run("chaos", chaos.env("REGATTA_CHAOS_SEED", seed.to_string()))
}

/// A new seed: the time.
pub fn new_seed() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// Runs every fuzz target for ten minutes. The sanitizers need a nightly compiler or
/// `RUSTC_BOOTSTRAP`.
pub fn fuzz() -> Result<()> {
    let targets = std::fs::read_dir("fuzz/fuzz_targets").context("fuzz/fuzz_targets")?;
    let mut names: Vec<String> = targets
        .flatten()
        .filter_map(|t| Some(Path::new(&t.file_name()).file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    for name in names {
        let found = format!("fuzz/artifacts/found/{name}");
        std::fs::create_dir_all(&found).with_context(|| found.clone())?;
        let dictionary = format!("fuzz/dictionaries/{name}.dict");
        let limits = ["-max_total_time=600", "-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"];
        let mut fuzz = cargo();
        fuzz.args(["fuzz", "run", &name, &found, &format!("fuzz/corpus/{name}"), "--"]);
        // Targets without keywords have no dictionary.
        if Path::new(&dictionary).exists() {
            fuzz.arg(format!("-dict={dictionary}"));
        }
        run(&format!("fuzz {name}"), fuzz.args(limits).env("RUSTC_BOOTSTRAP", "1"))?;
    }
    Ok(())
}

pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
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
