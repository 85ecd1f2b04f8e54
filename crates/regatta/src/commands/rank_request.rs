//! What a command that launches its own ranks sends to each through its channel, and what a rank tells
//! the launcher.

use regatta_comm::CommError;
use regatta_doctor::request::DoctorRequest;
use regatta_launch::channel::RankEnd;
use regatta_model::Machine;
use regatta_train::training::TrainError;
use serde::{Deserialize, Serialize};

use regatta_measure::rank::BenchError;
use regatta_measure::request::BenchRequest;

use super::train_task::TrainTask;
use crate::output;

/// What a rank is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankRequest {
    /// The work.
    pub task: RankTask,
    /// Command line of the parent process.
    pub command_line: Vec<String>,
    /// The node, if the ranks run on the parent's.
    pub machine: Option<Machine>,
}

/// The work of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub enum RankTask {
    /// `regatta bench`.
    Bench(Box<BenchRequest>),
    /// `regatta doctor`.
    Doctor(Box<DoctorRequest>),
    /// `regatta train`.
    Train(Box<TrainTask>),
}

/// What a rank knows from the process that launched it.
#[derive(Debug)]
pub struct RankContext {
    /// Command line of the user.
    pub command_line: Vec<String>,
    /// The node; `None` if the rank has to discover it.
    pub machine: Option<Machine>,
    /// The channel; `None` if the rank itself reports to the user.
    pub channel: Option<RankEnd>,
}

impl RankContext {
    /// The context of a rank that another launcher started.
    pub fn without_parent() -> Self {
        Self { command_line: command_line(), machine: None, channel: None }
    }
}

/// Tells the user why the collectives of this rank are not recorded, although they should be.
pub fn note_unrecorded() {
    if let Some(error) = regatta_comm::recording::failure() {
        output::note(&format!("collectives are not recorded: {error}"));
    }
}

/// The command line of this process.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Tells the launcher whose failure made this rank fail. Without it, the launcher attributes the
/// failure by the order of the exits.
pub fn report_lost_peer(to_launcher: &mut RankEnd, error: &anyhow::Error) {
    if let Some(peer) = lost_peer(error) {
        let _ = to_launcher.report_lost_peer(peer);
    }
}

/// The rank whose failure made this one fail.
fn lost_peer(error: &anyhow::Error) -> Option<u32> {
    let comm_error = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(TrainError::Comm(error)) => Some(error),
        _ => match cause.downcast_ref() {
            Some(BenchError::Comm(error)) => Some(error),
            _ => cause.downcast_ref::<CommError>(),
        },
    });
    comm_error?.failed_rank()
}

#[cfg(test)]
mod tests {
    use regatta_launch::channel;
    use regatta_measure::collectives::RankAverage;
    use regatta_measure::request::{Backend, Workload};

    use super::*;
    use crate::cli::tests::parse_bench;
    use crate::commands::bench::options;

    #[test]
    fn ranks_receive_what_the_command_line_means() {
        let words = "all-reduce -b 8 -e 1M -f 2 -a 3 -T 9 --backend tcp --label x -J out.json \
                     --plot p.svg --run-dir r --hostfile h --launch '-N2'";
        let command = parse_bench(words.split_whitespace()).unwrap();
        let options = options::parse(&command).unwrap().unwrap();
        let machine = Some(Machine { host: "n1".to_owned(), ..Machine::default() });
        let task = RankTask::Bench(Box::new(options.request.clone()));
        let request = RankRequest { task, command_line: command_line(), machine };
        let bytes = channel::encode(&request).unwrap();
        let received: RankRequest = channel::decode(&bytes).unwrap();
        let RankTask::Bench(benchmark) = received.task else { panic!("not a benchmark") };
        assert_eq!(*benchmark, options.request);
        assert_eq!(benchmark.timeout, Some(std::time::Duration::from_secs(9)));
        let Workload::Collectives { config, sizes, .. } = benchmark.workload else {
            panic!("another benchmark")
        };
        assert_eq!((config.sizes.len(), sizes.max), (18, 1 << 20));
        assert_eq!(config.average, Some(RankAverage::Max));
        assert_eq!((benchmark.label.as_deref(), benchmark.backend), (Some("x"), Backend::Tcp));
        assert_eq!(received.machine, request.machine);
        assert_eq!(received.command_line, request.command_line);
    }
}
