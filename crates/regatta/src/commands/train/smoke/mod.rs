//! `regatta train --smoke`: whether training on all ranks works here, and how long each part takes.

pub mod alone;
mod face;
pub mod rank;
mod report;
mod show;
