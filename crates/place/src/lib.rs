//! Pure decisions: from machine, allocation and job to a placement, an environment and the binding
//! options of a launcher, each with its reason. No I/O.

pub mod profile;
