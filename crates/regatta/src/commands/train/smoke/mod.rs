//! `regatta train --smoke`: a smoke test that checks and times each part of training on all ranks.

pub mod rank;
mod report;
mod reporter;
mod text;

pub use report::ReportingProcess;
pub use reporter::SmokeReporter;
