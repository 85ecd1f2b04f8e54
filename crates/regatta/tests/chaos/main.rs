//! Jobs on a cluster that is harmed while they run: after each the right report, the right exit
//! code, nothing left anywhere, and whole logs.
//!
//! What is done is chosen by a seed. `REGATTA_CHAOS_CASES` says how many cases are run,
//! `REGATTA_CHAOS_SEED` where they begin and `REGATTA_CHAOS_MIB` how much a rank writes that writes
//! much; `cargo xtask chaos` sets them.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod case;
mod check;
mod faults;
mod harm;
mod junk;
mod launch;
mod random;
mod restarts;
mod script;
mod secret;

/// The binary under test.
pub const REGATTA: &str = env!("CARGO_BIN_EXE_regatta");

/// The number that a variable of the environment holds.
fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{variable}={text}: {e}")))
}
