//! Measuring the network as every site does: the figures of nccl-tests, results of other programs
//! read, results compared, judged by a baseline and drawn.

pub mod baseline;
pub mod cases;
pub mod ceiling;
pub mod compare;
pub mod figure;
pub mod formula;
pub mod pairs;
pub mod place;
pub mod plot;
pub mod read;
pub mod run;
pub mod scan;
pub mod sweep;
pub mod write;
