//! What an agent must know before it can connect: the only thing it is given by whoever starts it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_model::hostlist;
use serde::{Deserialize, Serialize};

use super::member::Patience;
use super::tree::Tree;
use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

/// The boot document. It holds the job's secret: it goes over a pipe, or into a file of mode 0600.
#[derive(Debug, Serialize, Deserialize)]
pub struct Boot {
    /// Its form.
    version: u32,
    /// The run.
    pub run: String,
    secret: String,
    /// The nodes, as a compressed list.
    hosts: String,
    /// Where the coordinator listens: one of these is reached from the nodes.
    pub root: Vec<SocketAddr>,
    /// Where agents listen: the first of these that is free.
    pub ports: Vec<u16>,
    fan_out: u32,
    grace: Duration,
    join: Duration,
    lost_after: Duration,
    /// No `PathBuf`: serde takes that for text, and a folder may have any name.
    marker: OsString,
}

/// The form of this version.
const VERSION: u32 = 1;
/// How long a proof of the secret may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a node to which the way broke may look for another.
pub const REJOIN: Duration = Duration::from_secs(5);

/// How long things may take in a fleet.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// How long ranks have to end when they are told to.
    pub grace: Duration,
    /// How long agents have to connect.
    pub join: Duration,
    /// How long nothing may be heard of a node.
    pub lost_after: Duration,
}

impl Times {
    /// What a connection needs of it.
    pub fn timing(&self) -> Timing {
        let beat = (self.lost_after / 4).min(Duration::from_secs(2));
        Timing { handshake: HANDSHAKE, beat, lost_after: self.lost_after }
    }
}

/// Why a boot document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// It is none.
    #[error("the boot document cannot be read: {0}; it is made by regatta launch")]
    Form(#[from] serde_json::Error),
    /// It is another version's.
    #[error(
        "the boot document has form {0} and this regatta knows {VERSION}: use the same on every node"
    )]
    Version(u32),
    /// It contradicts itself.
    #[error("the boot document has no usable {0}")]
    Fault(&'static str),
}

impl Boot {
    /// The document for a job.
    pub fn new(
        run: &str,
        secret: &Secret,
        hosts: &[String],
        (fan_out, times): (u32, Times),
        (root, ports): (Vec<SocketAddr>, Vec<u16>),
        marker: PathBuf,
    ) -> Self {
        Self {
            version: VERSION,
            run: run.to_owned(),
            secret: secret.to_hex(),
            hosts: hostlist::compress(hosts),
            root,
            ports,
            fan_out,
            grace: times.grace,
            join: times.join,
            lost_after: times.lost_after,
            marker: marker.into(),
        }
    }

    /// As text, one line.
    pub fn to_text(&self) -> Result<String, BootError> {
        Ok(format!("{}\n", serde_json::to_string(self)?))
    }

    /// From text.
    pub fn from_text(text: &str) -> Result<Self, BootError> {
        let boot: Self = serde_json::from_str(text)?;
        match (boot.version == VERSION, boot.root.is_empty()) {
            (false, _) => Err(BootError::Version(boot.version)),
            (_, true) => Err(BootError::Fault("address of the coordinator")),
            _ => Ok(boot),
        }
    }

    /// The job's secret.
    pub fn secret(&self) -> Result<Secret, BootError> {
        Secret::from_hex(&self.secret).map_err(|_| BootError::Fault("secret"))
    }

    /// The nodes.
    pub fn hosts(&self) -> Result<Vec<String>, BootError> {
        hostlist::expand(&self.hosts).map_err(|_| BootError::Fault("list of nodes"))
    }

    /// A file by which an agent knows that it sees the run folder.
    pub fn marker(&self) -> &Path {
        Path::new(&self.marker)
    }

    /// The tree over `nodes` nodes.
    pub fn tree(&self, nodes: usize) -> Tree {
        Tree { nodes: nodes as u32, fan_out: self.fan_out.max(1) }
    }

    /// How long things may take.
    pub fn times(&self) -> Times {
        Times { grace: self.grace, join: self.join, lost_after: self.lost_after }
    }

    /// How long an agent is patient.
    pub fn patience(&self) -> Patience {
        Patience { grace: self.grace, join: self.join, rejoin: REJOIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_folder_may_have_any_name() {
        use std::os::unix::ffi::OsStringExt;
        let second = Duration::from_secs(1);
        let times = Times { grace: second, join: second, lost_after: second };
        let secret = Secret::generate().unwrap();
        let marker = PathBuf::from(OsString::from_vec(b"/a\xffb".to_vec()));
        let root = vec![SocketAddr::from(([127, 0, 0, 1], 9))];
        let hosts = ["node1".to_owned()];
        let boot = Boot::new("r", &secret, &hosts, (2, times), (root, Vec::new()), marker.clone());
        assert_eq!(Boot::from_text(&boot.to_text().unwrap()).unwrap().marker(), marker);
    }
}
