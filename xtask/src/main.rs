//! The project's chores: `cargo xtask test` is the test command of the README and of CI.

mod packages;
mod steps;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
cargo xtask test    install what the tests need (Debian or Ubuntu, as root), then check formatting,
                    lints, all tests and the documentation
cargo xtask fuzz    run every fuzz target for ten minutes (needs cargo-fuzz)
cargo xtask bench   run the benchmarks and print their ratios
cargo xtask chaos [--cases N] [--seed S]
                    harm N jobs on a cluster, as the seeds from S on say, and see how they end
cargo xtask chaos --comm [--cases N] [--seed S]
                    the same with N worlds of ranks in collectives on this machine, and N/10 more on
                    a network
cargo xtask chaos --train [--cases N] [--seed S]
                    harm N trainings on this machine, and see that they come to the same";

/// Cases of `cargo xtask chaos`.
const HUNDREDS: u64 = 300;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(),
        "fuzz" => steps::fuzz(),
        "bench" => steps::bench(),
        "chaos" => chaos(),
        _ => {
            eprintln!("{HELP}");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the options say, or else some hundreds of cases that were never seen before.
fn chaos() -> Result<()> {
    let (mut cases, mut seed, mut what) = (HUNDREDS, steps::new_seed(), None);
    let mut words = std::env::args().skip(2);
    while let Some(option) = words.next() {
        if option == "--comm" || option == "--train" {
            what = Some(option);
            continue;
        }
        let value = words.next().and_then(|text| text.parse().ok());
        match (option.as_str(), value) {
            ("--cases", Some(value)) => cases = value,
            ("--seed", Some(value)) => seed = value,
            _ => bail!("{option}: the options are --comm, --train, --cases N and --seed S"),
        }
    }
    match what.as_deref() {
        Some("--comm") => steps::chaos_comm(cases, seed),
        Some(_) => steps::chaos_train(cases, seed),
        None => steps::chaos(cases, seed),
    }
}

fn test() -> Result<()> {
    let complete = packages::install()?;
    steps::format()?;
    steps::lint()?;
    steps::tests(complete)?;
    steps::docs()
}
