//! Tests of the test cluster, which need root.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod affinity;
mod cluster;
mod fault_injection;
mod hostlist;
mod ssh;
