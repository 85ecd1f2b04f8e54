//! Jobs on a cluster that is harmed while they run: after each the right report, the right exit
//! code, nothing left anywhere, and whole logs.
//!
//! What is done is chosen by a seed. `REGATTA_CHAOS_CASES` says how many cases are run and
//! `REGATTA_CHAOS_SEED` where they begin; `cargo xtask chaos` sets both.

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
