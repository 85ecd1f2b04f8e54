//! Who runs the ranks, as the one that decides sees it: this node, or many.

use std::collections::BTreeMap;
use std::time::Duration;

use regatta_model::result::Ending;
use serde::{Deserialize, Serialize};

use crate::lines::Folded;

/// What happened to ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A rank has its process.
    Started {
        /// The rank.
        rank: u32,
        /// Its process, on its node.
        pid: u32,
    },
    /// Ranks wrote a line.
    Line(Folded),
    /// A rank wrote this, which its node keeps no log of.
    Wrote {
        /// The rank.
        rank: u32,
        /// Whether to standard error.
        error: bool,
        /// What.
        bytes: Vec<u8>,
    },
    /// A rank ended.
    Ended(u32, Ending),
    /// The last lines of a rank that failed.
    Tail(u32, Vec<String>),
    /// What ranks are doing, as was asked.
    Doing(BTreeMap<u32, String>),
    /// A rank wrote something or used a processor.
    Progress,
    /// A signal came to one that runs ranks, from the scheduler.
    Signal(i32),
    /// A node's ranks are lost, or are being ended by the node itself, because the way to it broke.
    Broken {
        /// The first of them.
        rank: u32,
        /// What is known.
        why: String,
    },
    /// A node is gone, and its ranks with it.
    Lost {
        /// The node's position.
        node: u32,
        /// Its ranks.
        ranks: Vec<u32>,
    },
    /// A rank could not be started.
    Unstarted {
        /// The rank.
        rank: u32,
        /// Why, with host and fix.
        why: String,
    },
    /// Something the user should know.
    Note(String),
    /// Nothing more is to come of this start.
    Over,
}

/// What is to be done with all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Send them this signal.
    Signal(i32),
    /// Kill them with all they started.
    Kill,
    /// Tell what they are doing.
    Look,
}

/// Runs the ranks of one start of a job.
pub trait Crew {
    /// The next thing that happened; waits for it at most `timeout`. While `held`, what ranks write
    /// is left where it is, and so is the end of it all; in the end, that holds the ranks back.
    fn next(&mut self, timeout: Duration, held: bool) -> Option<Event>;

    /// Does something with all ranks.
    fn order(&mut self, order: Order);
}
