//! The bootstrap document: everything an agent needs to know before it can connect.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
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
    /// Version of its format.
    pub version: u32,
    /// ID of the run.
    pub run: String,
    /// The job's secret in hexadecimal.
    pub secret: String,
    /// Compressed host list.
    pub hosts: String,
    /// Addresses of the coordinator, at least one of which the nodes can reach.
    pub root: Vec<SocketAddr>,
    /// Candidate ports of agents; an agent listens on the first free one.
    pub ports: Vec<u16>,
    /// Maximum number of children per agent.
    pub fan_out: u32,
    /// Timeouts of the job.
    #[serde(flatten)]
    pub timeouts: JobTimeouts,
    /// A file in the log folder; an agent that sees it writes its ranks' logs there.
    /// Not a `PathBuf`: serde requires UTF-8 for those, and a path may be any byte string.
    pub marker: OsString,
}

/// Version of the document's format.
pub const VERSION: u32 = 2;
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
        let marker = std::path::PathBuf::from(OsString::from_vec(b"/a\xffb".to_vec()));
        let bootstrap = BootstrapDocument {
            version: VERSION,
            run: "r".to_owned(),
            secret: Secret::generate().unwrap().to_hex(),
            hosts: "node1".to_owned(),
            fan_out: 2,
            timeouts: JobTimeouts { grace: second, join: second, lost_after: second },
            root: vec![SocketAddr::from(([127, 0, 0, 1], 9))],
            ports: Vec::new(),
            marker: marker.clone().into(),
        };
        assert_eq!(
            BootstrapDocument::from_text(&bootstrap.to_text().unwrap()).unwrap().marker(),
            marker
        );
    }
}
