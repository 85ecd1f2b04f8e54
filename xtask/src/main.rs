//! Development tasks: `cargo xtask test` is the test command of the README and of CI.

mod dist;
mod easybuild;
mod lines;
mod steps;
mod system_packages;
mod test_programs;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
cargo xtask test    install the packages that tests need (Debian or Ubuntu, as root), then check
                    formatting and lints, run all tests and build the documentation; usually
                    18 minutes on two cores
cargo xtask fuzz    run every fuzz target for ten minutes (needs cargo-fuzz)
cargo xtask bench   run the benchmarks and print their ratios
cargo xtask dist [x86_64] [aarch64]
                    build a wheel and a tarball in target/dist that run with glibc 2.28 and newer (needs
                    python3 and rustup; installs maturin and ziglang into target/dist/venv)
cargo xtask check-dist [x86_64] [aarch64]
                    install these packages without a package index and run map and a short training; of
                    another architecture with qemu-user-static and its C library (libc6-arm64-cross)
cargo xtask easybuild
                    write the EasyBuild file with the crates of Cargo.lock into packaging/easybuild
cargo xtask lines [REVISION]
                    count the lines of code of each crate, without comments, blank lines, tests and fakes
cargo xtask chaos [--cases N] [--seed S]
                    inject faults into N launched jobs on clusters of up to 40 nodes, with seeds from S
                    on: killed and hung processes, pauses, suspended jobs, duplicate signals, cut links,
                    crashed nodes, full disks
cargo xtask chaos --comm [--cases N] [--seed S]
                    inject faults into N jobs running collectives on this machine, and N/10 more on a
                    network: killed, stopped and paused ranks, mismatching calls, broken links
cargo xtask chaos --train [--cases N] [--seed S]
                    inject faults into N training runs on this machine and compare their losses: kills,
                    signals, pauses, hung ranks, damaged checkpoints";

/// Default number of cases of `cargo xtask chaos`.
const CHAOS_CASES: u64 = 300;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(),
        "fuzz" => steps::fuzz(),
        "bench" => steps::bench(),
        "dist" => dist::dist(std::env::args().skip(2)),
        "check-dist" => dist::check::check_dist(std::env::args().skip(2)),
        "easybuild" => easybuild::write(),
        "lines" => lines::run(std::env::args().nth(2).as_deref()),
        "chaos" => chaos(),
        _ => {
            eprintln!("{HELP}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = &result {
        eprintln!("xtask: {error:#}");
    }
    ExitCode::from(u8::from(result.is_err()))
}

/// Runs fault injection as the options say; a new seed by default.
fn chaos() -> Result<()> {
    let (mut cases, mut seed, mut suite) = (CHAOS_CASES, steps::new_seed(), None);
    let mut words = std::env::args().skip(2);
    while let Some(option) = words.next() {
        if option == "--comm" || option == "--train" {
            suite = Some(option);
            continue;
        }
        let value = words.next().and_then(|text| text.parse().ok());
        match (option.as_str(), value) {
            ("--cases", Some(value)) => cases = value,
            ("--seed", Some(value)) => seed = value,
            _ => bail!("{option}: expected --comm, --train, --cases N or --seed S"),
        }
    }
    steps::chaos(suite.as_deref(), cases, seed)
}

fn test() -> Result<()> {
    steps::announce(1, "system packages", "none if they are installed");
    let complete = system_packages::install()?;
    steps::format()?;
    steps::lint()?;
    steps::tests(complete)?;
    steps::docs()
}
