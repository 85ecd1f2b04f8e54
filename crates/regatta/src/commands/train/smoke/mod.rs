//! `regatta train --smoke`: a smoke test that checks and times each part of a training on all ranks.

pub mod parent;
pub mod rank;
mod report;
mod reporter;
mod text;
