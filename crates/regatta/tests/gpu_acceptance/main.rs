//! Acceptance tests of `regatta train` on a GPU: parallel layouts over NCCL, traffic, determinism,
//! faults, and agreement with CPUs.
//!
//! They need one NVIDIA GPU, which all ranks of a run share, and are skipped with a message without
//! one. The program can be copied to a machine without a source tree. Environment variables:
//!
//! | variable | meaning |
//! |---|---|
//! | `REGATTA_TEST_BINARY` | the `regatta` binary to test, if it is not where Cargo built it |
//! | `REGATTA_REQUIRE_GPU=1` | a missing GPU is a failure |
//! | `REGATTA_ACCEPTANCE=cpu` | train on CPUs, to test the tests; cases that need a GPU are skipped |
//! | `REGATTA_ACCEPTANCE_RANKS` | ranks that may run at a time (default 8 on a GPU, 2 on CPUs) |
//! | `REGATTA_ACCEPTANCE_ROW` | run only the rows of a table that contain this text |

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod agreement;
mod checkpoint_bytes;
mod determinism;
mod faults;
mod harness;
mod layouts;
mod libraries;
mod nccl_plugins;
mod offload;
mod overlap;
mod profiler;
mod rank_slots;
mod rows;
#[path = "../support/mod.rs"]
mod support;
mod tolerance;
mod traffic;
