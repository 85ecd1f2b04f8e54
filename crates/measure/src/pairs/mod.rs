//! Every pair of ranks measured, so that a bad link or node stands out by name.
//!
//! [`rounds`] says who meets whom and when, [`judge`] what stands out.

mod ends;
pub mod judge;
pub mod rounds;

pub use ends::ends;
pub use judge::{Bounds, Finding, judge};
