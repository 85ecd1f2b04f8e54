//! Recorded machines and topology files give the right machine, or the right error.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod hwloc;
mod hwloc_errors;
mod recorded;
