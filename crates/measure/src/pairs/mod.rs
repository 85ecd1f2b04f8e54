//! Pairwise measurement of all ranks, to identify slow links and nodes.
//!
//! [`schedule`] orders the pairs, [`burst`] sizes the messages, [`measure()`] runs them and
//! [`diagnose()`] finds faults; [`text`] and [`svg`] draw the matrices as heat maps.

pub mod burst;
pub mod diagnose;
mod measure;
mod ping_pong;
pub mod schedule;
mod select;
pub mod svg;
pub mod text;

pub use burst::BurstOptions;
pub use diagnose::{PairFinding, diagnose};
pub use measure::{PairsOptions, measure};
pub use select::select_ranks;
