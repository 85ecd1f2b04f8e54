//! Development tasks: `cargo xtask test` is the test command of the README and of CI.

mod accept;
mod dist;
mod easybuild;
mod lines;
mod steps;
mod system_packages;
mod test_programs;

use std::process::ExitCode;

use anyhow::Result;

const HELP: &str = "\
cargo xtask test    install the packages that tests need (Debian or Ubuntu, as root), then check
                    formatting and lints, run all tests and build the documentation; usually
                    13 minutes on two cores
cargo xtask test NAME...
                    build all, and run only the test programs and modules whose names contain a NAME, such as
                    \"regatta cluster\" or train_faults, isolated from each other
cargo xtask accept  list the long campaigns, one per capability: faults, soaks, fuzzing
cargo xtask accept NAME [--cases N] [--seed S]
                    run one, and keep its output in bench/results unless N is given; S is the first of the
                    seeds that the cases are generated from
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
                    count the lines of code of each crate, without comments, blank lines, tests and fakes";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(std::env::args().skip(2).collect()),
        "accept" => accept::run(std::env::args().skip(2)),
        "bench" => steps::bench(),
        "dist" => dist::dist(std::env::args().skip(2)),
        "check-dist" => dist::check::check_dist(std::env::args().skip(2)),
        "easybuild" => easybuild::write(),
        "lines" => lines::run(std::env::args().nth(2).as_deref()),
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

/// All checks, or only the tests of some names.
fn test(names: Vec<String>) -> Result<()> {
    steps::announce(1, "system packages", "none if they are installed");
    let available = system_packages::install()?;
    if !names.is_empty() {
        return steps::some_tests(available, &names);
    }
    steps::format()?;
    steps::lint()?;
    steps::tests(available)
}
