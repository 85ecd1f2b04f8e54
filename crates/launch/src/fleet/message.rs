//! What agents and the coordinator tell each other.

use std::collections::BTreeMap;
use std::ffi::OsString;

use regatta_model::result::Ending;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bind::Binding;
use crate::crew::Order;
use crate::lines::Folded;
use crate::process::{RankSpec, Setting};

/// From an agent towards the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// A node is there. The first thing an agent says, for itself.
    Hello(Hello),
    /// A node is there again, after the way to the coordinator broke; its ranks are being ended.
    Back {
        /// The node.
        node: u32,
        /// The node the way led through, if it was not the coordinator itself.
        through: Option<u32>,
        /// What broke.
        why: String,
    },
    /// The way to a node, and to those below it, broke.
    Lost {
        /// The node, unless it is reached by another way again.
        node: Option<u32>,
        /// What is known.
        why: String,
        /// Those below it.
        below: Vec<u32>,
    },
    /// Lines that ranks wrote.
    Lines(Vec<Folded>),
    /// What a rank wrote, on a node that does not see the run folder.
    Wrote {
        /// The rank.
        rank: u32,
        /// Whether to standard error.
        error: bool,
        /// What.
        bytes: Vec<u8>,
    },
    /// What happened to ranks of a node in a start of the job.
    Told {
        /// The node.
        node: u32,
        /// How often the job was started before.
        attempt: u32,
        /// What happened.
        what: Told,
    },
    /// A rank wrote something or used a processor.
    Progress,
    /// A signal came to an agent.
    Signal(i32),
    /// Something the user should know.
    Note(String),
}

/// A node and what the coordinator must know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its position among the nodes.
    pub node: u32,
    /// The machine as it found it, as JSON.
    pub machine: String,
    /// A port that is free there, and kept for the job.
    pub port: Option<u16>,
}

/// What happened to ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// A rank has its process.
    Started {
        /// The rank.
        rank: u32,
        /// Its process.
        pid: u32,
    },
    /// A rank could not be started.
    Unstarted {
        /// The rank.
        rank: u32,
        /// Why.
        why: String,
    },
    /// A rank ended.
    Ended(u32, Ending),
    /// The last lines of a rank that failed.
    Tail(u32, Vec<String>),
    /// What ranks are doing.
    Doing(BTreeMap<u32, String>),
    /// All ranks of the node are over, and all they wrote is on its way: how each ended, for what
    /// was said of it before may be lost.
    Over(BTreeMap<u32, Ending>),
}

/// From the coordinator towards agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// Start ranks.
    Start {
        /// The node.
        node: u32,
        /// What to start.
        work: Work,
    },
    /// Do something with all ranks.
    All(Order),
    /// Say again what you said: it may have been lost.
    Again {
        /// The node.
        node: u32,
        /// Whether also who you are.
        hello: bool,
        /// The start of the job it is about.
        attempt: u32,
    },
    /// This many bytes of what you sent have been taken; to a neighbour only.
    Taken(u64),
    /// The job is over: end.
    Leave,
}

/// The ranks of a node, and what they have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// How often the job was started before.
    pub attempt: u32,
    /// What they run.
    pub command: Vec<OsString>,
    /// Where. No `PathBuf`: serde takes that for text, and a folder may have any name.
    pub folder: OsString,
    /// The environment of whoever launched, where the agent has none of it.
    pub base: Vec<(OsString, OsString)>,
    /// What of the agent's environment they do not get: variables that begin so.
    pub without: Vec<String>,
    /// What all ranks of the job have set.
    pub common: Vec<Setting>,
    /// Whether their progress is to be told.
    pub progress: bool,
    /// The ranks.
    pub ranks: Vec<RankWork>,
}

/// What one rank has to itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankWork {
    /// Its number.
    pub rank: u32,
    /// Its command, if it is another.
    pub command: Option<Vec<OsString>>,
    /// What only it has set.
    pub env: Vec<Setting>,
    /// What it is bound to.
    pub binding: Binding,
}

impl Work {
    /// The ranks, each with all it needs.
    pub fn specs(&self) -> Vec<RankSpec> {
        let one = |rank: &RankWork| RankSpec {
            rank: rank.rank,
            command: rank.command.clone().unwrap_or_else(|| self.command.clone()),
            folder: Some(self.folder.clone().into()),
            base: self.base.clone(),
            without: self.without.clone(),
            env: self.common.iter().chain(&rank.env).cloned().collect(),
            binding: rank.binding.clone(),
        };
        self.ranks.iter().map(one).collect()
    }
}

impl Up {
    /// What the output in it weighs, if it is output: so much may be on its way and no more.
    pub fn weight(&self) -> u64 {
        let line = |l: &Folded| l.text.len() + 4 * l.ranks.len() + 16;
        match self {
            Up::Lines(lines) => lines.iter().map(line).sum::<usize>() as u64,
            Up::Wrote { bytes, .. } => bytes.len() as u64 + 16,
            _ => 0,
        }
    }
}

/// A message that is none: the other side is not what it proved to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a message of this version: {0}")]
pub struct MessageError(String);

/// A message as bytes.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, MessageError> {
    postcard::to_stdvec(message).map_err(|e| MessageError(e.to_string()))
}

/// A message from bytes, all of them.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, MessageError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(MessageError(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(MessageError(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_survives() {
        let doing = Told::Doing(BTreeMap::from([(3, "waiting".to_owned())]));
        let told = Up::Told { node: 1, attempt: 2, what: doing };
        assert_eq!(decode::<Up>(&encode(&told).unwrap()).unwrap(), told);
        let order = Down::All(Order::Signal(15));
        let mut bytes = encode(&order).unwrap();
        assert_eq!(decode::<Down>(&bytes).unwrap(), order);
        bytes.push(0);
        assert!(decode::<Down>(&bytes).unwrap_err().to_string().contains("1 bytes too many"));
    }

    #[test]
    fn a_folder_may_have_any_name() {
        use std::os::unix::ffi::OsStringExt;
        let work = Work {
            attempt: 0,
            command: vec![OsString::from_vec(vec![0xff])],
            folder: OsString::from_vec(b"/a\xffb".to_vec()),
            base: Vec::new(),
            without: Vec::new(),
            common: Vec::new(),
            progress: false,
            ranks: Vec::new(),
        };
        let order = Down::Start { node: 0, work };
        assert_eq!(decode::<Down>(&encode(&order).unwrap()).unwrap(), order);
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_refused_in_words(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Up>(&bytes);
            let _ = decode::<Down>(&bytes);
        }
    }
}
