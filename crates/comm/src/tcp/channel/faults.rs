//! What is wrong with a communicator: told by rank 0, shown by messages, or by the clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::watch::Due;
use super::{Posting, TcpTransport};
use crate::background::Over;
use crate::error::Peer;
use crate::fabric::Carrier;
use crate::tcp::control::{Called, Fault, Left, Up};
use crate::tcp::mesh::{Mesh, Trouble, Way};
use crate::transport::Ticket;
use crate::{CommError, DType};

/// How long rank 0 may take to say what is wrong; then this rank says what it sees itself.
pub(super) const VERDICT_WITHIN: Duration = Duration::from_secs(6);

/// What to do about a large message that nobody takes.
const CIRCLE: &str =
    " that is not received (ranks that all send first wait in a circle: put messages in a group)";

/// What is known to be wrong with a communicator of these members.
fn fault_of<'a>(mesh: &'a Mesh, channel: u64, members: &[u32]) -> Option<&'a Fault> {
    let matters = |(of, fault): &&(Option<u64>, Fault)| match of {
        Some(of) => *of == channel,
        None => fault.concerns(members),
    };
    mesh.news.faults.iter().find(matters).map(|(_, fault)| fault)
}

impl TcpTransport {
    /// Something is wrong with a rank; rank 0 may know better what.
    pub(super) fn suspect(&mut self, rank: u32, way: Way, why: String) {
        if self.suspicion.is_none() {
            let sends = way == Way::Out;
            let channel = self.channel;
            self.endpoint.control.tell(Up::Saw { channel, rank, sends, why: why.clone() });
            let error = CommError::Lost { peer: self.peer(rank), why, call: self.doing.clone() };
            self.suspicion = Some((Instant::now() + VERDICT_WITHIN, error));
        }
    }

    /// How to ask whether something is known to be wrong with this communicator.
    pub fn over(&self) -> Over {
        let (shared, channel) = (self.endpoint.shared.clone(), self.channel);
        let members = self.members.clone();
        Arc::new(move || fault_of(&shared.lock(), channel, &members).is_some())
    }

    /// What is known to be wrong with this communicator.
    pub(super) fn verdict(&self, mesh: &Mesh) -> Option<CommError> {
        if let Some(fault) = fault_of(mesh, self.channel, &self.members) {
            return Some(self.explain(fault, mesh));
        }
        let left = mesh.news.left.iter().filter(|((channel, _), _)| *channel == self.channel);
        left.map(|((_, rank), left)| (*rank, left))
            .find(|(rank, left)| self.is_in_vain(*rank, left))
            .map(|(rank, _)| CommError::Aborted {
                by: self.peer(rank),
                why: format!("it closed the communicator, while others do {}", self.doing),
            })
    }

    /// Whether what is done waits for a rank that has left before.
    fn is_in_vain(&self, rank: u32, left: &Left) -> bool {
        if self.in_call {
            return left.calls <= self.calls_done;
        }
        let of = |counts: &[(u32, u64)], of: u32| {
            counts.iter().find(|(rank, _)| *rank == of).map_or(0, |(_, count)| *count)
        };
        let waits = self.open.iter().any(|posting| posting.with == rank);
        waits && of(&self.received, rank) >= of(&left.messages, self.me())
    }

    /// A fault as this rank sees it.
    fn explain(&self, fault: &Fault, mesh: &Mesh) -> CommError {
        match fault {
            Fault::Lost { rank, why } => CommError::Lost {
                peer: self.peer(*rank),
                why: why.clone(),
                call: self.doing.clone(),
            },
            Fault::Disagree { sequence, most, odd } if most.1.is_message() => {
                // Of the two, this rank first; others were at neither.
                let (ours, theirs) = if odd.0 == self.me() { (odd, most) } else { (most, odd) };
                CommError::Disagree {
                    sequence: *sequence,
                    ours_by: self.peer(ours.0),
                    ours: Box::new(ours.1.into()),
                    theirs_by: self.peer(theirs.0),
                    theirs: Box::new(theirs.1.into()),
                }
            }
            Fault::Disagree { sequence, most, odd } => {
                let own = mesh.channels.peek(self.channel).and_then(|c| c.called(*sequence));
                self.disagree(*sequence, own, *most, *odd)
            }
            Fault::Late { seconds, missing, .. } => CommError::Late {
                call: self.waiting(),
                seconds: *seconds,
                missing: missing.iter().map(|rank| self.peer(*rank)).collect(),
            },
            Fault::Path { from, to, why } => CommError::Path {
                from: self.peer(*from),
                to: self.peer(*to),
                why: why.clone(),
                call: self.doing.clone(),
            },
            Fault::Aborted { rank, why } => {
                CommError::Aborted { by: self.peer(*rank), why: why.clone() }
            }
        }
    }

    /// Who is with most names the odd one, who is not names the most.
    fn disagree(
        &self,
        sequence: u64,
        own: Option<Called>,
        most: (u32, Called),
        odd: (u32, Called),
    ) -> CommError {
        // One that has not come so far is told of two others.
        let by = if own.is_some() { self.me() } else { most.0 };
        let own = own.unwrap_or(most.1);
        let theirs = if own == most.1 { odd } else { most };
        CommError::Disagree {
            sequence,
            ours_by: self.peer(by),
            ours: Box::new(own.into()),
            theirs_by: self.peer(theirs.0),
            theirs: Box::new(theirs.1.into()),
        }
    }

    /// What takes too long, and perhaps why.
    fn waiting(&self) -> String {
        let circle = self.open.iter().any(|posting| posting.message && posting.way == Way::Out);
        format!("{}{}", self.doing, if circle { CIRCLE } else { "" })
    }

    /// What this rank sees itself, if rank 0 says nothing.
    fn own_late(&self, seconds: u64) -> CommError {
        let missing = self.awaited().into_iter().map(|rank| self.peer(rank)).collect();
        CommError::Late { call: self.waiting(), seconds, missing }
    }

    /// Whom this rank waits for.
    fn awaited(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.open.iter().map(|posting| posting.with).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Asks rank 0 whether waiting is in vain, or, being late, where all are.
    fn ask(&self, late: Option<u64>) {
        let all = self.in_call && late.is_some();
        let members = if all { self.members.clone() } else { Vec::new() };
        let (channel, awaited) = (self.channel, self.awaited());
        let call = self.in_call.then_some(self.calls_done + 1);
        self.endpoint.control.tell(Up::Ask { channel, call, awaited, members, late });
    }

    /// Ends with what was suspected, and has all others know it.
    fn concede(&mut self, error: CommError) -> CommError {
        let fault = self.fault(&error);
        self.endpoint.control.tell(Up::Report { channel: self.channel, fault });
        self.fail(error)
    }

    /// An error as all others are told of it.
    pub(super) fn fault(&self, error: &CommError) -> Fault {
        let global = |peer: &Peer| self.global_of(peer);
        match error {
            CommError::Late { seconds, missing, .. } => Fault::Late {
                sequence: self.calls_done + 1,
                seconds: *seconds,
                missing: missing.iter().map(global).collect(),
            },
            CommError::Lost { peer, why, .. } => {
                Fault::Lost { rank: global(peer), why: why.clone() }
            }
            CommError::Aborted { by, why } => Fault::Aborted { rank: global(by), why: why.clone() },
            CommError::Path { from, to, why, .. } => {
                Fault::Path { from: global(from), to: global(to), why: why.clone() }
            }
            CommError::Disagree { sequence, ours_by, ours, theirs_by, theirs } => Fault::Disagree {
                sequence: *sequence,
                most: (global(ours_by), (**ours).into()),
                odd: (global(theirs_by), (**theirs).into()),
            },
            _ => Fault::Aborted { rank: self.me(), why: error.to_string() },
        }
    }

    /// Ends if it is known that something is wrong. What was made of who left, the others should
    /// hear from this rank, before it too leaves.
    pub(super) fn hear(&mut self, mesh: &Mesh) -> Result<(), CommError> {
        match self.verdict(mesh) {
            None => Ok(()),
            Some(error @ CommError::Aborted { .. }) => Err(self.concede(error)),
            Some(error) => Err(self.fail(error)),
        }
    }

    /// Whether something is wrong: told by others, shown by messages, or by the clock.
    pub(super) fn check(&mut self, mesh: &mut Mesh, now: Instant) -> Result<Instant, CommError> {
        self.hear(mesh)?;
        if let Some(why) = mesh.fabric.as_ref().and_then(Carrier::dead) {
            let what = "libfabric was shut".to_owned();
            return Err(self.concede(CommError::System { what, why: why.to_owned() }));
        }
        match mesh.channels.get(self.channel).trouble.take() {
            Some(Trouble::Size { of, came, room }) => return Err(self.unmatched(of, came, room)),
            Some(Trouble::Mismatch { call }) => self.mismatch(call, now),
            None => {}
        }
        let broken = |posting: &Posting| {
            Some((posting.with, posting.way, mesh.broken.get(&(posting.with, posting.way))?))
        };
        let broken = self.open.iter().find_map(broken);
        if let Some((rank, way, why)) = broken {
            self.suspect(rank, way, why.clone());
        }
        let moved = mesh.channels.get(self.channel).moved;
        let next = match self.watch.look(moved, now) {
            Due::Nothing(then) => then,
            Due::Ask => {
                let waits = Some((self.watch.since(), self.awaited()));
                mesh.channels.get(self.channel).waits = waits;
                self.ask(None);
                self.listen(mesh);
                now
            }
            Due::Late => {
                let seconds = self.watch.seconds(now);
                mesh.news.clear.remove(&self.channel);
                self.ask(Some(seconds));
                let late = self.own_late(seconds);
                self.suspicion.get_or_insert((now + VERDICT_WITHIN, late));
                now
            }
        };
        let cleared = mesh.news.clear.remove(&self.channel);
        match &self.suspicion {
            Some((until, error)) if now >= *until || cleared => {
                let mut error = error.clone();
                if let (CommError::Late { missing, .. }, false) = (&mut error, cleared) {
                    self.add_judge(missing);
                }
                Err(self.concede(error))
            }
            Some((until, _)) => Ok(next.min(*until)),
            None => Ok(next),
        }
    }

    /// A message has another length than the room for it, both in bytes: all that is known here.
    fn unmatched(&self, ticket: Ticket, sent: u64, expected: u64) -> CommError {
        let from = self.open.iter().find(|posting| posting.ticket == ticket);
        let from = self.peer(from.map_or(u32::MAX, |posting| posting.with));
        let (to, dtype) = (self.peer(self.me()), DType::U8);
        CommError::Unmatched { from, to, dtype, sent, expected }
    }

    /// Sees whether the path to one that is waited for is still there.
    fn listen(&mut self, mesh: &Mesh) {
        let limit = self.endpoint.lost_after;
        let silent = self.open.iter().find_map(|posting| {
            let unheard = mesh.unheard(posting.with).filter(|unheard| *unheard >= limit)?;
            Some((posting.with, posting.way, unheard))
        });
        if let Some((rank, way, unheard)) = silent {
            let why = format!("for {} s nothing sent was acknowledged", unheard.as_secs());
            self.suspect(rank, way, why);
        }
    }

    /// Rank 0 did not answer either.
    fn add_judge(&self, missing: &mut Vec<Peer>) {
        let judge = self.peer(0);
        if self.me() != 0 && !missing.contains(&judge) {
            missing.insert(0, judge);
        }
    }

    /// A message of another call came: rank 0 finds out who called what.
    fn mismatch(&mut self, call: u64, now: Instant) {
        let why = format!("messages of another kind came in call {call}");
        let error = CommError::System { what: self.doing.clone(), why };
        let (channel, call, awaited) = (self.channel, Some(call), Vec::new());
        let (members, late) = (self.members.clone(), Some(self.watch.seconds(now)));
        self.endpoint.control.tell(Up::Ask { channel, call, awaited, members, late });
        self.suspicion.get_or_insert((now + VERDICT_WITHIN, error));
    }
}
