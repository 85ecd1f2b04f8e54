//! Operations and graphs of the device agree with the reference, on real, fake and emulated GPUs.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod conformance;
mod emulated_amd;
mod fake_conformance;
mod graph;
