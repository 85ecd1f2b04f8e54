//! The project's chores: `cargo xtask test` is the test command of the README and of CI.

mod packages;
mod steps;

use std::process::ExitCode;

use anyhow::Result;

const HELP: &str = "\
cargo xtask test    install what the tests need (Debian or Ubuntu, as root), then check formatting,
                    lints, all tests and the documentation
cargo xtask fuzz    run every fuzz target for ten minutes (needs cargo-fuzz)
cargo xtask bench   run the benchmarks and print their ratios";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(),
        "fuzz" => steps::fuzz(),
        "bench" => steps::bench(),
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

fn test() -> Result<()> {
    let complete = packages::install()?;
    steps::format()?;
    steps::lint()?;
    steps::tests(complete)?;
    steps::docs()
}
