//! Results are measured, read, written and compared.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod compare;
mod pairs_virtual_nodes;
mod read;
mod write;
