//! Every pair of ranks measured, so that a bad link or node stands out by name.
//!
//! [`rounds`] says who meets whom and when, [`effort`] how much is sent, [`measure()`] does it, and
//! [`judge()`] says what stands out; [`text`] and [`svg`] draw the matrices.

pub mod effort;
mod ends;
pub mod judge;
mod measure;
pub mod rounds;
pub mod svg;
pub mod text;
mod worker;

pub use effort::Effort;
pub use ends::ends;
pub use judge::{Bounds, Finding, judge};
pub use measure::{Options, measure};
