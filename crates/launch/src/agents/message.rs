//! Messages between agents and the coordinator.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use regatta_model::result::RankExit;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cpu_binding::Binding;
use crate::lines::MergedLine;
use crate::process::{EnvSetting, RankSpec};
use crate::rank_files::RankFile;
use crate::worker_group::{JobEvent, RankControl};

/// From agents towards the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum Upstream {
    /// Registers a node. The first message of an agent on a new connection.
    Register(Registration),
    /// A node has reconnected after it lost its parent, another node or the coordinator; it is
    /// terminating its ranks.
    Reconnected { node: u32, lost_parent: Option<u32>, why: String },
    /// A node, unless it has another route, and those below it are disconnected.
    Disconnected { node: Option<u32>, why: String, descendants: Vec<u32> },
    /// Lines of output.
    Lines(Vec<MergedLine>),
    /// Raw output, progress, a signal or a warning.
    Event(JobEvent),
    /// The payload of a frame of a rank's channel.
    Frame { attempt: u32, rank: u32, bytes: Vec<u8> },
    /// An event of a node's ranks.
    RankEvent { node: u32, attempt: u32, event: RankEvent },
}

/// A node's description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Index of the node.
    pub node: u32,
    /// The discovered machine, as JSON.
    pub machine: String,
    /// A port reserved for the job.
    pub port: Option<u16>,
}

/// An event of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankEvent {
    /// One that the coordinator passes on.
    Job(JobEvent),
    /// All ranks of the node have exited and all their output is sent. Repeats the exit of each
    /// rank, because earlier messages may be lost.
    Finished(BTreeMap<u32, RankExit>),
}

/// From the coordinator towards agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum Downstream {
    /// Start ranks on a node.
    Start { node: u32, launch: Box<NodeLaunch> },
    /// A command to all ranks of all nodes.
    Broadcast(RankControl),
    /// Resend the events of an attempt, which may be lost, and the registration if requested.
    Resend { node: u32, register: bool, attempt: u32 },
    /// Flow-control credit: this many bytes of output have been consumed. Not forwarded.
    Credit(u64),
    /// The job is finished: exit.
    Shutdown,
}

/// The ranks to launch on a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeLaunch {
    /// Number of restarts so far.
    pub attempt: u32,
    /// Command of the ranks.
    pub command: Vec<OsString>,
    /// Working directory. Not a `PathBuf`: serde requires UTF-8 for those.
    pub cwd: OsString,
    /// The launcher's environment, where the agent does not have it.
    pub base_env: Vec<(OsString, OsString)>,
    /// Variables of the agent's environment with these prefixes are removed.
    pub env_remove_prefixes: Vec<String>,
    /// Environment of all ranks of the job.
    pub common_env: Vec<EnvSetting>,
    /// Files that all ranks of the job must find.
    pub files: Vec<RankFile>,
    /// Directory of the ranks' code caches, which the agent creates.
    pub cache_dir: String,
    /// Payload of the input frame of the ranks' channels; `None`: the ranks have no channels.
    pub input: Option<Vec<u8>>,
    /// Whether the ranks fail without the job's secret. Only those of this program are known to.
    pub needs_secret: bool,
    /// Whether to report progress.
    pub report_progress: bool,
    /// The ranks.
    pub ranks: Vec<RankLaunch>,
}

/// What is specific to one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLaunch {
    /// The rank.
    pub rank: u32,
    /// Its command, if different from the common one.
    pub command: Option<Vec<OsString>>,
    /// Its own environment.
    pub env: Vec<EnvSetting>,
    /// CPU and memory binding.
    pub binding: Binding,
}

impl NodeLaunch {
    /// The complete specification of each rank.
    pub fn specs(&self) -> Vec<RankSpec> {
        let input: Option<Arc<[u8]>> = self.input.as_deref().map(Arc::from);
        let spec = |rank: &RankLaunch| RankSpec {
            rank: rank.rank,
            command: rank.command.clone().unwrap_or_else(|| self.command.clone()),
            cwd: Some(self.cwd.clone().into()),
            base_env: self.base_env.clone(),
            env_remove_prefixes: self.env_remove_prefixes.clone(),
            env: self.common_env.iter().chain(&rank.env).cloned().collect(),
            binding: rank.binding.clone(),
            input: input.clone(),
        };
        self.ranks.iter().map(spec).collect()
    }
}

impl Upstream {
    /// Flow-control cost in bytes: non-zero for output and frames, zero for control messages.
    pub fn cost(&self) -> u64 {
        let cost = match self {
            Upstream::Lines(lines) => lines.iter().map(MergedLine::byte_len).sum(),
            Upstream::Event(JobEvent::Output { bytes, .. }) | Upstream::Frame { bytes, .. } => {
                bytes.len() + 16
            }
            _ => 0,
        };
        cost as u64
    }

    /// Whether lines that arrived earlier must be sent before this message: after it, the receiver
    /// may no longer wait for output.
    pub fn ends_output(&self) -> bool {
        use JobEvent::{Exited, OutputTail};
        match self {
            Upstream::Disconnected { .. } => true,
            Upstream::RankEvent { event: RankEvent::Job(event), .. } => {
                matches!(event, Exited(..) | OutputTail(..))
            }
            Upstream::RankEvent { event: RankEvent::Finished(_), .. } => true,
            _ => false,
        }
    }
}

/// A message could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid message: {0}; run the same regatta version on every node")]
pub struct MessageError(String);

/// Encodes a message.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, MessageError> {
    postcard::to_stdvec(message).map_err(|e| MessageError(e.to_string()))
}

/// Decodes a message, which must use all bytes.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, MessageError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(MessageError(format!("{} trailing bytes", rest.len()))),
        Err(error) => Err(MessageError(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_round_trip_and_trailing_bytes_are_rejected() {
        let event = RankEvent::Job(JobEvent::RankStates([(3, "waiting".to_owned())].into()));
        let upstream = Upstream::RankEvent { node: 1, attempt: 2, event };
        assert_eq!(decode::<Upstream>(&encode(&upstream).unwrap()).unwrap(), upstream);
        let downstream = Downstream::Broadcast(RankControl::Signal(15));
        let mut bytes = encode(&downstream).unwrap();
        assert_eq!(decode::<Downstream>(&bytes).unwrap(), downstream);
        bytes.push(0);
        let error = decode::<Downstream>(&bytes).unwrap_err().to_string();
        assert!(error.contains("1 trailing bytes"), "{error}");
    }

    #[test]
    fn paths_may_be_any_byte_string() {
        use std::os::unix::ffi::OsStringExt;
        let launch = NodeLaunch {
            command: vec![OsString::from_vec(vec![0xff])],
            cwd: OsString::from_vec(b"/a\xffb".to_vec()),
            ..NodeLaunch::default()
        };
        let message = Downstream::Start { node: 0, launch: Box::new(launch) };
        assert_eq!(decode::<Downstream>(&encode(&message).unwrap()).unwrap(), message);
    }

    #[test]
    fn the_longest_frame_fits_in_a_message() {
        let bytes = vec![0; crate::channel::MAX_FRAME_LEN];
        let message = Upstream::Frame { attempt: u32::MAX, rank: u32::MAX, bytes };
        assert!(encode(&message).unwrap().len() <= regatta_wire::link::MAX_FRAME_LEN);
    }

    proptest! {
        #[test]
        fn random_bytes_are_rejected_or_decode_to_a_message_that_round_trips(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(message) = decode::<Upstream>(&bytes) {
                prop_assert_eq!(decode::<Upstream>(&encode(&message).unwrap()).unwrap(), message);
            }
            if let Ok(message) = decode::<Downstream>(&bytes) {
                prop_assert_eq!(decode::<Downstream>(&encode(&message).unwrap()).unwrap(), message);
            }
        }

        #[test]
        fn truncated_messages_are_rejected(bytes: Vec<u8>, cut in any::<prop::sample::Index>()) {
            let message = encode(&Upstream::Frame { attempt: 1, rank: 2, bytes }).unwrap();
            prop_assert!(decode::<Upstream>(&message[..cut.index(message.len())]).is_err());
        }
    }
}
