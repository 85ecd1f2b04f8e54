//! Fault injection into jobs on a cluster. After each case: the right report and exit code, no
//! leftover processes, complete logs.
//!
//! Cases are generated from seeds. `REGATTA_CHAOS_CASES` is the number of cases,
//! `REGATTA_CHAOS_SEED` the first seed and `REGATTA_CHAOS_MIB` the size of large outputs;
//! `cargo xtask accept launch-chaos` sets them. Seeds cycle through the scenarios, so `REGATTA_CHAOS_STRIDE`, the
//! distance between seeds, repeats one scenario if it is their number.

mod case;
mod check;
mod inject;
mod job;
mod rank_script;
mod restarts;
mod runner;
mod scenario;
mod secret;
mod unauthenticated;

/// The number in an environment variable.
fn env_number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{variable}={text}: {e}")))
}
