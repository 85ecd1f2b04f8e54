//! Results as drawings and pages: text from data, by `draw`.

pub mod comms;
pub mod node;
pub mod train;
