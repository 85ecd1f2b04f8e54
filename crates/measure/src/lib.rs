//! Benchmarks: collectives measured as nccl-tests does, results of other programs parsed, results
//! compared, checked against a baseline and plotted, and the roofline of each node.

pub mod baseline;
pub mod buffer_mode;
pub mod bus_bandwidth;
pub mod cases;
pub mod collectives;
pub mod compare;
pub mod labels;
pub mod metric;
pub mod pairs;
pub mod plot;
pub mod rank;
pub mod read;
pub mod request;
pub mod roofline;
pub mod scaling;
pub mod sweep;
pub mod write;

type CommResult<T = ()> = Result<T, regatta_comm::CommError>;
