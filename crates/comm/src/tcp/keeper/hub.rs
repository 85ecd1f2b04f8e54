//! What rank 0 does for all: first they gather, then it judges.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::tcp::control::{Down, Member};
use crate::tcp::gathering::{Failed, Gathering};
use crate::tcp::judge::{Judge, To};

/// How the gathering came out.
pub type Gathered = Result<Vec<Member>, Failed>;

/// Rank 0's part.
pub struct Hub {
    pub judge: Judge,
    gathering: Option<Gathering>,
    deadline: Instant,
    within: Duration,
    gathered: Sender<Gathered>,
    /// By which algorithms all do their collectives.
    algorithms: String,
    /// Which connection leads to which rank.
    conns: BTreeMap<u32, usize>,
    out: Vec<(Option<usize>, Down)>,
    failed: Option<Failed>,
}

impl Hub {
    /// Waits for all, to give them the table of algorithms; tells how it came out.
    pub fn new(
        world: u32,
        own: Member,
        within: Duration,
        algorithms: String,
        gathered: Sender<Gathered>,
    ) -> Self {
        let mut gathering = Gathering::new(world);
        let alone = gathering.welcome(world, own);
        let mut hub = Self {
            judge: Judge::default(),
            gathering: Some(gathering),
            deadline: Instant::now() + within,
            within,
            gathered,
            algorithms,
            conns: BTreeMap::new(),
            out: Vec::new(),
            failed: None,
        };
        match alone {
            Ok(()) => hub.complete(),
            Err(failed) => hub.fail(failed),
        }
        hub
    }

    /// How many ranks are connected.
    pub fn known(&self) -> usize {
        self.conns.len()
    }

    /// Whether nobody else is left.
    pub fn is_alone(&self) -> bool {
        self.conns.is_empty()
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// A rank comes. What is given back refuses it.
    pub fn join(&mut self, conn: usize, world: u32, member: Member) -> Result<(), Down> {
        let rank = member.rank;
        if let Some(failed) = &self.failed {
            return Err(refused(failed));
        }
        let Some(gathering) = &mut self.gathering else {
            let what = format!("all ranks are connected, and here comes another rank {rank}");
            let hint = "each job needs a MASTER_PORT of its own".to_owned();
            return Err(Down::Refused { what, hint });
        };
        match gathering.welcome(world, member) {
            Ok(()) => {
                self.conns.insert(rank, conn);
                self.complete();
                Ok(())
            }
            Err(failed) => {
                let refused = refused(&failed);
                self.fail(failed);
                Err(refused)
            }
        }
    }

    fn complete(&mut self) {
        let Some(members) = self.gathering.as_ref().and_then(Gathering::complete) else { return };
        self.gathering = None;
        let algorithms = self.algorithms.clone();
        let table = Down::Table { members: members.clone(), algorithms };
        self.out.extend(self.conns.values().map(|conn| (Some(*conn), table.clone())));
        let _ = self.gathered.send(Ok(members));
    }

    /// It comes to nothing, and all who are here are told.
    fn fail(&mut self, failed: Failed) {
        let refused = refused(&failed);
        self.out.extend(self.conns.values().map(|conn| (Some(*conn), refused.clone())));
        self.gathering = None;
        self.failed = Some(failed.clone());
        let _ = self.gathered.send(Err(failed));
    }

    /// A rank's connection is over.
    pub fn closed(&mut self, rank: u32, why: &str) {
        self.conns.remove(&rank);
        if self.gathering.is_some() {
            let what = format!("rank {rank} came and went ({why})");
            let hint = "see why it ended".to_owned();
            self.fail(Failed { what, hint });
        } else {
            self.judge.closed(rank, why);
        }
    }

    pub fn stranger(&mut self, from: IpAddr, why: &str) {
        if let Some(gathering) = &mut self.gathering {
            gathering.stranger(from.to_string(), why);
        }
    }

    pub fn tick(&mut self, now: Instant) {
        if let Some(gathering) = self.gathering.as_ref().filter(|_| now >= self.deadline) {
            let failed = gathering.overdue(self.within.as_secs());
            self.fail(failed);
        }
        self.judge.tick(now);
    }

    /// What is to be told, on which connection; `None`: to rank 0 itself.
    pub fn take(&mut self) -> Vec<(Option<usize>, Down)> {
        for (to, down) in self.judge.take() {
            match to {
                To::Rank(0) => self.out.push((None, down)),
                To::Rank(rank) => {
                    self.out.extend(self.conns.get(&rank).map(|conn| (Some(*conn), down)));
                }
                To::All => {
                    self.out.extend(self.conns.values().map(|conn| (Some(*conn), down.clone())));
                    self.out.push((None, down));
                }
            }
        }
        std::mem::take(&mut self.out)
    }
}

fn refused(failed: &Failed) -> Down {
    Down::Refused { what: failed.what.clone(), hint: failed.hint.clone() }
}
