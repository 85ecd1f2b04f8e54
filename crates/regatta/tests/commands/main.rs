//! The commands of the binary on one machine, except training.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod architecture;
mod bench;
mod bench_faults;
mod cli;
mod comms;
mod fuzz_corpus;
mod launch;
mod launch_environment;
mod launch_faults;
mod launch_output;
mod launch_plugins;
mod launch_profile;
mod net_log;
mod plugin_check;
mod recorded;
mod runs;
mod scheduler_env;
mod site_pages;
mod submit;
#[path = "../support/mod.rs"]
mod support;
mod systems;
