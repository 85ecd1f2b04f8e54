//! The report of `regatta comms`. Bandwidths are in GB/s (10⁹ bytes/s), sizes as nccl-tests counts them.

use regatta_model::{Document, Warning};
use serde::{Deserialize, Serialize};

/// The whole report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CommsReport {
    /// Attempts of the job that have event files: 0 is the first, 1 the first restart.
    pub attempts: Vec<u32>,
    /// The attempts of this report.
    pub reported_attempts: Vec<u32>,
    /// Totals.
    pub summary: Summary,
    /// Operations by kind, communicator size and message size.
    pub histogram: Vec<SizeRow>,
    /// Communicators, the one with the longest time first.
    pub communicators: Vec<CommunicatorRow>,
    /// Processes, the one for which others waited longest first.
    pub ranks: Vec<RankRow>,
    /// Operations without an end, the last ones of each process.
    pub in_flight: Vec<InFlight>,
    /// Clocks, and how they are aligned.
    pub clocks: Vec<ClockRow>,
    /// Event files.
    pub files: Vec<FileRow>,
    /// What makes the report incomplete.
    pub warnings: Vec<Warning>,
}

impl Document for CommsReport {
    const KIND: &'static str = "comms";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta comms --json";
}

/// Totals of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Processes.
    pub processes: usize,
    /// Hosts.
    pub hosts: usize,
    /// Calls of all ranks.
    pub calls: u64,
    /// Bytes of all calls.
    pub bytes: u64,
    /// From the first operation to the last one, in seconds.
    pub wall_s: f64,
    /// Duration of all calls, in seconds.
    pub time_s: f64,
    /// Mean share of a rank's wall time in which an operation ran.
    pub busy_share: Option<f64>,
    /// Collectives that were matched over all of their ranks.
    pub matched_collectives: u64,
    /// Every how many collectives of a communicator one was matched.
    pub matched_stride: u64,
}

/// A row of the histogram.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeRow {
    /// The operation.
    pub operation: String,
    /// Ranks of the communicator; `None` for point-to-point operations, and if unknown.
    pub ranks: Option<u32>,
    /// Message size; with `size_bucket`, a power of two.
    pub size_bytes: u64,
    /// The row has all sizes from `size_bytes` to below twice that size.
    pub size_bucket: bool,
    /// Largest message.
    pub max_size_bytes: u64,
    /// Calls of all ranks.
    pub calls: u64,
    /// Collectives: each is a call on every rank of its communicator.
    pub collectives: Option<u64>,
    /// Bytes of all calls.
    pub bytes: u64,
    /// Duration of all calls, in seconds.
    pub time_s: f64,
    /// Share of the duration of all operations.
    pub time_share: Option<f64>,
    /// Mean duration.
    pub mean_us: Option<f64>,
    /// Median duration, within 3 %.
    pub median_us: Option<f64>,
    /// 99th percentile of the duration, within 3 %.
    pub p99_us: Option<f64>,
    /// Longest duration.
    pub max_us: Option<f64>,
    /// Algorithm bandwidth at the mean duration.
    pub algbw_gb_s: Option<f64>,
    /// Bus bandwidth at the mean duration, as nccl-tests would show it.
    pub busbw_gb_s: Option<f64>,
    /// Without the wait for late ranks.
    pub transfer: Option<TransferRow>,
    /// Calls by data type, algorithm and protocol, the most frequent first.
    pub variants: Vec<VariantRow>,
}

/// Transfers of collectives, without the wait for late ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferRow {
    /// Collectives that were matched over all ranks.
    pub collectives: u64,
    /// Mean of the shortest duration over the ranks.
    pub mean_us: f64,
    /// Algorithm bandwidth at that duration.
    pub algbw_gb_s: Option<f64>,
    /// Bus bandwidth at that duration.
    pub busbw_gb_s: Option<f64>,
}

/// Calls with a data type, algorithm and protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VariantRow {
    /// Data type.
    pub dtype: String,
    /// Algorithm, or empty.
    pub algorithm: String,
    /// Protocol, or empty.
    pub protocol: String,
    /// Calls.
    pub calls: u64,
}

/// A communicator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CommunicatorRow {
    /// Its id, as a hexadecimal number; empty if unknown.
    pub id: String,
    /// Its name, or empty.
    pub name: String,
    /// Its ranks; 0 if unknown.
    pub ranks: u32,
    /// Its nodes; 0 if unknown.
    pub nodes: u32,
    /// Ranks of the job in it, as ranges.
    pub job_ranks: String,
    /// Calls of all ranks.
    pub calls: u64,
    /// Bytes of all calls.
    pub bytes: u64,
    /// Duration of all calls, in seconds.
    pub time_s: f64,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankRow {
    /// Rank of the job.
    pub rank: Option<u32>,
    /// Host.
    pub host: String,
    /// Process ID.
    pub pid: u32,
    /// Attempt of the job.
    pub attempt: u32,
    /// Operations.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their duration, in seconds.
    pub time_s: f64,
    /// Share of its wall time in which an operation ran.
    pub busy_share: Option<f64>,
    /// Collectives that were matched over all ranks.
    pub matched: u64,
    /// Those at which this rank arrived last.
    pub last: u64,
    /// How far it then was behind the median rank, on average.
    pub mean_delay_us: Option<f64>,
    /// How long it waited for the last rank, on average.
    pub mean_wait_us: Option<f64>,
    /// Wait of sends in the network, in seconds, of all channels together; with network steps only.
    pub send_wait_s: f64,
    /// Wait of receives for the network.
    pub receive_wait_s: f64,
    /// Operations without an end.
    pub unfinished: u64,
    /// Events and operations that were lost.
    pub lost: u64,
}

/// An operation without an end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Rank of the job.
    pub rank: Option<u32>,
    /// Host.
    pub host: String,
    /// Communicator: name, or id.
    pub communicator: String,
    /// The operation.
    pub operation: String,
    /// Its number among the collectives of the communicator, or the messages of the peer.
    pub index: u64,
    /// Peer or root.
    pub peer: Option<u32>,
    /// Message size.
    pub size_bytes: u64,
    /// Time from its enqueuing to the last event of the process, in seconds.
    pub age_s: f64,
}

/// A clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockRow {
    /// Host.
    pub host: String,
    /// Processes on it.
    pub processes: usize,
    /// Added to its monotonic time, in seconds.
    pub offset_s: f64,
    /// How far that may be off at most; `None` if only the real-time clocks are known.
    pub uncertainty_us: Option<f64>,
    /// How far that is probably off: the median deviation of the ends of collectives.
    pub deviation_us: Option<f64>,
}

/// An event file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FileRow {
    /// Its name.
    pub name: String,
    /// Rank of the job.
    pub rank: Option<u32>,
    /// Attempt of the job.
    pub attempt: u32,
    /// `complete`, `open`, `damaged` or `unreadable`.
    pub end: String,
    /// Offset of the damage.
    pub damaged_at: Option<u64>,
    /// Operations.
    pub calls: u64,
}
