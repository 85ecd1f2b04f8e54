//! Measuring the network as every site does: the figures of nccl-tests, results of other programs
//! read, results compared, judged by a baseline and drawn.

pub mod cases;
pub mod formula;
pub mod pairs;
pub mod scan;
pub mod sweep;
