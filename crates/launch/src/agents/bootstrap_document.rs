//! The bootstrap document: everything an agent needs to know before it can connect.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_model::hostlist;
use serde::{Deserialize, Serialize};

use super::tree::Tree;
use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

/// The bootstrap document. It contains the job's secret, so it is passed through a pipe or a file of
/// mode 0600.
#[derive(Debug, Serialize, Deserialize)]
pub struct BootstrapDocument {
    version: u32,
    /// ID of the run.
    pub run: String,
    secret: String,
    /// Compressed host list.
    hosts: String,
    /// Addresses of the coordinator, at least one of which the nodes can reach.
    pub root: Vec<SocketAddr>,
    /// Candidate ports of agents; an agent listens on the first free one.
    pub ports: Vec<u16>,
    fan_out: u32,
    /// Timeouts of the job.
    #[serde(flatten)]
    pub timeouts: JobTimeouts,
    /// Not a `PathBuf`: serde requires UTF-8 for those, and a path may be any byte string.
    marker: OsString,
}

/// Contents of a bootstrap document.
pub struct BootstrapParams<'a> {
    /// ID of the run.
    pub run: &'a str,
    /// The job's secret.
    pub secret: &'a Secret,
    /// Hosts of the job.
    pub hosts: &'a [String],
    /// Maximum number of children per agent.
    pub fan_out: u32,
    /// Timeouts of the job.
    pub timeouts: JobTimeouts,
    /// Addresses of the coordinator.
    pub root: Vec<SocketAddr>,
    /// Candidate ports of agents.
    pub ports: Vec<u16>,
    /// A file in the log folder; an agent that sees it writes its ranks' logs there.
    pub marker: PathBuf,
}

/// Version of the document's format.
const VERSION: u32 = 1;
/// Handshake timeout of a link.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a disconnected agent to find another parent.
pub const REJOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeouts of a job on many nodes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JobTimeouts {
    /// Time between the termination signal and SIGKILL.
    pub grace: Duration,
    /// Time for agents to connect at the start.
    pub join: Duration,
    /// A node counts as lost when nothing arrives from it for this long.
    pub lost_after: Duration,
}

impl JobTimeouts {
    /// Timing of the links.
    pub fn timing(&self) -> Timing {
        let heartbeat = (self.lost_after / 4).min(Duration::from_secs(2));
        Timing { handshake: HANDSHAKE_TIMEOUT, heartbeat, lost_after: self.lost_after }
    }
}

/// Why a bootstrap document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// It is malformed.
    #[error("cannot parse the bootstrap document: {0}; only `regatta launch` creates one")]
    Malformed(#[from] serde_json::Error),
    /// It has another version.
    #[error(
        "the bootstrap document has version {0}, this regatta supports {VERSION}: run the same \
         regatta version on every node"
    )]
    Version(u32),
    /// A field is invalid.
    #[error("invalid bootstrap document: no usable {0}")]
    Invalid(&'static str),
}

impl BootstrapDocument {
    /// Creates the document for a job.
    pub fn new(params: BootstrapParams<'_>) -> Self {
        Self {
            version: VERSION,
            run: params.run.to_owned(),
            secret: params.secret.to_hex(),
            hosts: hostlist::compress(params.hosts),
            root: params.root,
            ports: params.ports,
            fan_out: params.fan_out,
            timeouts: params.timeouts,
            marker: params.marker.into(),
        }
    }

    /// Serialises the document to one line of JSON.
    pub fn to_text(&self) -> Result<String, BootstrapError> {
        Ok(format!("{}\n", serde_json::to_string(self)?))
    }

    /// Parses the output of [`Self::to_text`].
    pub fn from_text(text: &str) -> Result<Self, BootstrapError> {
        let document: Self = serde_json::from_str(text)?;
        match (document.version == VERSION, document.root.is_empty()) {
            (false, _) => Err(BootstrapError::Version(document.version)),
            (_, true) => Err(BootstrapError::Invalid("coordinator address")),
            _ => Ok(document),
        }
    }

    /// The job's secret.
    pub fn secret(&self) -> Result<Secret, BootstrapError> {
        Secret::from_hex(&self.secret).map_err(|_| BootstrapError::Invalid("secret"))
    }

    /// Hosts of the job.
    pub fn hosts(&self) -> Result<Vec<String>, BootstrapError> {
        hostlist::expand(&self.hosts).map_err(|_| BootstrapError::Invalid("host list"))
    }

    /// A file in the log folder, visible to agents that share the run folder's file system.
    pub fn marker(&self) -> &Path {
        Path::new(&self.marker)
    }

    /// The tree over `nodes` nodes.
    pub fn tree(&self, nodes: usize) -> Tree {
        Tree { nodes: nodes as u32, fan_out: self.fan_out.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_path_may_be_any_byte_string() {
        use std::os::unix::ffi::OsStringExt;
        let second = Duration::from_secs(1);
        let marker = PathBuf::from(OsString::from_vec(b"/a\xffb".to_vec()));
        let bootstrap = BootstrapDocument::new(BootstrapParams {
            run: "r",
            secret: &Secret::generate().unwrap(),
            hosts: &["node1".to_owned()],
            fan_out: 2,
            timeouts: JobTimeouts { grace: second, join: second, lost_after: second },
            root: vec![SocketAddr::from(([127, 0, 0, 1], 9))],
            ports: Vec::new(),
            marker: marker.clone(),
        });
        assert_eq!(
            BootstrapDocument::from_text(&bootstrap.to_text().unwrap()).unwrap().marker(),
            marker
        );
    }
}
