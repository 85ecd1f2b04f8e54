//! Tuning tables of NCCL and RCCL: which algorithm, protocol and number of channels is the fastest for
//! a collective of a size, on a number of ranks and nodes, where it is not NCCL's own choice.
//!
//! `regatta bench --tune` measures the [`candidate`]s and [`fit`]s a [`table`], which is a small text file
//! ([`parse`]). The tuner plug-in [`select`]s from it. No part of this crate does I/O.

pub mod candidate;
pub mod fit;
pub mod names;
pub mod parse;
pub mod select;
pub mod table;

pub use names::{Algorithm, Function, Protocol};
pub use table::{Choice, Communicator, Row, SizeRange, Table};
