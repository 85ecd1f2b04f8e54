//! Decides what becomes of a job: who failed first, when the others are told to end, when they are
//! made to. No I/O; time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use regatta_model::result::Ending;

use crate::signals::asks_to_end;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A rank ended.
    Ended(u32, Ending),
    /// The way to the node of this rank, and of others, broke: how they end is yet to be heard.
    Broken(u32),
    /// The user or the scheduler sent a signal.
    Signal(i32),
    /// The scheduler sent a signal to a node.
    NodeSignal(i32),
    /// A rank wrote something, or used a processor.
    Progress,
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send this signal to every rank that runs.
    SignalRanks(i32),
    /// Kill every rank that runs with all it started.
    Kill,
    /// Look what each rank is doing: one failed, or nothing has happened for too long.
    Look,
    /// The job is over. What ranks started may outlive them.
    Finish,
}

/// Where the job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Told to end at this time.
    Ending(Instant),
    /// Being killed.
    Killing,
    Over,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long ranks have to end when they are told to.
    pub grace: Duration,
    /// How long no rank may write anything or use a processor; `None`: for ever.
    pub hang_after: Option<Duration>,
}

/// The exit code of a job that hung.
const HUNG: u8 = 124;

/// How much later than others' a rank's end may be heard of, though it came before.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// The state of a job.
#[derive(Debug)]
pub struct Supervisor {
    limits: Limits,
    phase: Phase,
    last_progress: Instant,
    /// Whether the user stopped the ranks.
    stopped: bool,
    hung: bool,
    running: u32,
    endings: BTreeMap<u32, Ending>,
    first_failure: Option<(u32, Ending)>,
    signal: Option<i32>,
}

impl Supervisor {
    /// A job of `ranks` ranks that all run.
    pub fn new(ranks: u32, limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            phase: Phase::Running,
            last_progress: now,
            stopped: false,
            hung: false,
            running: ranks,
            endings: BTreeMap::new(),
            first_failure: None,
            signal: None,
        }
    }

    /// Takes what happened and says what to do.
    pub fn handle(&mut self, input: Input, now: Instant) -> Vec<Action> {
        match input {
            Input::Ended(rank, ending) => self.ended(rank, ending, now),
            Input::Broken(rank) => self.broken(rank, now),
            Input::Signal(signal) => self.signalled(signal, now),
            Input::NodeSignal(signal) => self.node_signalled(signal, now),
            Input::Progress => {
                self.last_progress = now;
                Vec::new()
            }
            Input::Tick => self.tick(now),
        }
    }

    fn ended(&mut self, rank: u32, ending: Ending, now: Instant) -> Vec<Action> {
        if self.endings.insert(rank, ending).is_some() || self.running == 0 {
            return Vec::new();
        }
        self.running -= 1;
        // What ends after it was told to is a consequence, not a cause.
        let fails = self.phase == Phase::Running && !ending.is_good();
        if fails || self.is_cause(ending, now) {
            self.first_failure = Some((rank, ending));
        }
        if self.running == 0 {
            self.phase = Phase::Over;
            return vec![Action::Finish];
        }
        match (self.phase, self.first_failure) {
            (Phase::Running, Some(_)) => self.end_others(now),
            _ => Vec::new(),
        }
    }

    /// Whether a rank that was killed, and not by us, is why another one gave up: its death may be
    /// heard of after the end of a rank that missed it.
    fn is_cause(&self, ending: Ending, now: Instant) -> bool {
        let Phase::Ending(since) = self.phase else { return false };
        let gave_up = matches!(self.first_failure, Some((_, Ending::Exit(_))));
        let late = now.saturating_duration_since(since);
        gave_up && ending == Ending::Signal(libc::SIGKILL) && late < HEARD_WITHIN
    }

    fn broken(&mut self, rank: u32, now: Instant) -> Vec<Action> {
        if self.phase != Phase::Running {
            return Vec::new();
        }
        self.first_failure = Some((rank, Ending::Lost));
        self.end_others(now)
    }

    /// Something is wrong: sees what all are doing, and ends them.
    fn end_others(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = vec![Action::Look];
        actions.extend(self.end_ranks(libc::SIGTERM, now));
        actions
    }

    /// The first signal is passed on, and the job ends when the ranks do; a second one kills.
    /// Signals that do not ask for an end are only passed on.
    fn signalled(&mut self, signal: i32, now: Instant) -> Vec<Action> {
        match self.phase {
            Phase::Over => Vec::new(),
            _ if !asks_to_end(signal) => {
                match signal {
                    libc::SIGTSTP => self.stopped = true,
                    libc::SIGCONT => (self.stopped, self.last_progress) = (false, now),
                    _ => {}
                }
                vec![Action::SignalRanks(signal)]
            }
            Phase::Running => {
                self.signal = Some(signal);
                self.end_ranks(signal, now)
            }
            Phase::Ending(_) | Phase::Killing => {
                // After a failure it is the first one: the job is not to be started anew.
                self.signal.get_or_insert(signal);
                self.phase = Phase::Killing;
                vec![Action::Kill]
            }
        }
    }

    /// It comes to many nodes, to some of them late: it is never a second one, which kills.
    fn node_signalled(&mut self, signal: i32, now: Instant) -> Vec<Action> {
        let ends = matches!(self.phase, Phase::Ending(_) | Phase::Killing);
        if asks_to_end(signal) && ends {
            self.signal.get_or_insert(signal);
            return Vec::new();
        }
        self.signalled(signal, now)
    }

    fn end_ranks(&mut self, signal: i32, now: Instant) -> Vec<Action> {
        self.phase = Phase::Ending(now);
        vec![Action::SignalRanks(signal)]
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match self.phase {
            Phase::Running if self.is_hanging(now) => {
                self.hung = true;
                self.end_others(now)
            }
            Phase::Ending(since) if now.saturating_duration_since(since) >= self.limits.grace => {
                self.phase = Phase::Killing;
                vec![Action::Kill]
            }
            // A rank that was just being started may have missed it.
            Phase::Killing => vec![Action::Kill],
            _ => Vec::new(),
        }
    }

    fn is_hanging(&self, now: Instant) -> bool {
        let quiet = now.saturating_duration_since(self.last_progress);
        !self.stopped && self.limits.hang_after.is_some_and(|limit| quiet >= limit)
    }

    /// Whether the job was ended because nothing happened any more.
    pub fn hung(&self) -> bool {
        self.hung
    }

    /// The rank that failed first, if one did before anything was told to end.
    pub fn first_failure(&self) -> Option<(u32, Ending)> {
        self.first_failure
    }

    /// The signal that ended the job, if one did.
    pub fn ended_by(&self) -> Option<i32> {
        self.signal
    }

    /// How each rank that is over ended.
    pub fn endings(&self) -> &BTreeMap<u32, Ending> {
        &self.endings
    }

    /// The job's exit code: the first failing rank's; for a job that hung what `timeout` gives; else
    /// that of the signal that ended it, unless every rank made a good end of it.
    pub fn code(&self) -> u8 {
        let good = self.running == 0 && self.endings.values().all(|e| e.is_good());
        match (self.first_failure, self.signal) {
            (Some((_, ending)), _) => ending.code(),
            _ if self.hung => HUNG,
            (None, Some(signal)) if !good => Ending::Signal(signal).code(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn job(ranks: u32) -> (Supervisor, Instant) {
        let now = Instant::now();
        (Supervisor::new(ranks, Limits { grace: GRACE, hang_after: None }, now), now)
    }

    #[test]
    fn all_good() {
        let (mut job, now) = job(2);
        assert!(job.handle(Input::Ended(1, Ending::Exit(0)), now).is_empty());
        let last = job.handle(Input::Ended(0, Ending::Exit(0)), now);
        assert_eq!(last, [Action::Finish]);
        assert_eq!((job.code(), job.first_failure()), (0, None));
    }

    #[test]
    fn the_first_failure_counts_and_ends_the_others() {
        let (mut job, now) = job(3);
        let told = job.handle(Input::Ended(2, Ending::Exit(7)), now);
        assert_eq!(told, [Action::Look, Action::SignalRanks(libc::SIGTERM)]);
        assert!(job.handle(Input::Ended(0, Ending::Signal(15)), now).is_empty());
        assert!(job.handle(Input::Tick, now + GRACE / 2).is_empty());
        assert_eq!(job.handle(Input::Tick, now + GRACE), [Action::Kill]);
        job.handle(Input::Ended(1, Ending::Signal(9)), now + GRACE);
        assert_eq!((job.code(), job.first_failure()), (7, Some((2, Ending::Exit(7)))));
    }

    #[test]
    fn a_killed_rank_is_the_cause_though_it_is_heard_of_late() {
        let killed = Ending::Signal(libc::SIGKILL);
        let (mut job, now) = job(4);
        job.handle(Input::Ended(2, Ending::Exit(1)), now);
        job.handle(Input::Ended(3, Ending::Exit(1)), now);
        assert!(job.handle(Input::Ended(1, killed), now + HEARD_WITHIN / 2).is_empty());
        assert_eq!((job.code(), job.first_failure()), (137, Some((1, killed))));
        // One more was not before it.
        job.handle(Input::Ended(0, killed), now + HEARD_WITHIN / 2);
        assert_eq!(job.first_failure(), Some((1, killed)));
    }

    #[test]
    fn what_is_killed_later_is_no_cause() {
        let killed = Ending::Signal(libc::SIGKILL);
        let (mut late, now) = job(2);
        late.handle(Input::Ended(1, Ending::Exit(7)), now);
        late.handle(Input::Ended(0, killed), now + HEARD_WITHIN);
        assert_eq!(late.first_failure(), Some((1, Ending::Exit(7))));
        let (mut told, now) = job(2);
        told.handle(Input::Signal(2), now);
        told.handle(Input::Ended(0, killed), now);
        assert_eq!(told.first_failure(), None);
    }

    #[test]
    fn a_second_signal_kills() {
        let (mut job, now) = job(1);
        assert_eq!(job.handle(Input::Signal(2), now), [Action::SignalRanks(2)]);
        assert_eq!(job.handle(Input::Signal(2), now), [Action::Kill]);
        job.handle(Input::Ended(0, Ending::Signal(9)), now);
        assert_eq!((job.code(), job.ended_by(), job.first_failure()), (130, Some(2), None));
    }

    #[test]
    fn a_signal_after_a_failure_is_known_and_changes_no_code() {
        let (mut job, now) = job(2);
        job.handle(Input::Ended(1, Ending::Exit(7)), now);
        assert_eq!(job.handle(Input::Signal(15), now), [Action::Kill]);
        job.handle(Input::Ended(0, Ending::Signal(9)), now);
        assert_eq!((job.code(), job.ended_by()), (7, Some(15)));
    }

    #[test]
    fn a_signal_to_many_nodes_leaves_ranks_their_grace() {
        let (mut job, now) = job(2);
        assert_eq!(job.handle(Input::NodeSignal(15), now), [Action::SignalRanks(15)]);
        assert!(job.handle(Input::NodeSignal(15), now + GRACE / 2).is_empty());
        assert_eq!(job.handle(Input::Tick, now + GRACE), [Action::Kill]);
    }

    #[test]
    fn a_signal_to_nodes_after_a_failure_is_known_and_kills_nobody() {
        let (mut job, now) = job(2);
        job.handle(Input::Ended(1, Ending::Signal(15)), now);
        assert!(job.handle(Input::NodeSignal(15), now).is_empty());
        assert_eq!(job.ended_by(), Some(15));
    }

    #[test]
    fn ranks_that_save_and_end_well_on_a_signal_are_no_failure() {
        let (mut job, now) = job(1);
        job.handle(Input::Signal(libc::SIGTERM), now);
        job.handle(Input::Ended(0, Ending::Exit(0)), now);
        assert_eq!(job.code(), 0);
    }

    #[test]
    fn a_job_in_which_nothing_happens_is_ended() {
        let now = Instant::now();
        let limits = Limits { grace: GRACE, hang_after: Some(Duration::from_secs(60)) };
        let mut job = Supervisor::new(2, limits, now);
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(job.handle(Input::Tick, at(59)).is_empty());
        job.handle(Input::Progress, at(59));
        assert!(job.handle(Input::Tick, at(118)).is_empty());
        let actions = job.handle(Input::Tick, at(119));
        assert_eq!(actions, [Action::Look, Action::SignalRanks(libc::SIGTERM)]);
        assert_eq!(job.handle(Input::Tick, at(129)), [Action::Kill]);
        job.handle(Input::Ended(0, Ending::Signal(9)), at(129));
        job.handle(Input::Ended(1, Ending::Signal(9)), at(129));
        assert_eq!((job.code(), job.hung(), job.first_failure()), (124, true, None));
    }

    #[test]
    fn a_job_that_the_user_stopped_does_not_hang() {
        let now = Instant::now();
        let limits = Limits { grace: GRACE, hang_after: Some(Duration::from_secs(60)) };
        let mut job = Supervisor::new(1, limits, now);
        let at = |seconds| now + Duration::from_secs(seconds);
        job.handle(Input::Signal(libc::SIGTSTP), at(10));
        assert!(job.handle(Input::Tick, at(1000)).is_empty());
        job.handle(Input::Signal(libc::SIGCONT), at(1000));
        assert!(job.handle(Input::Tick, at(1059)).is_empty());
        assert!(!job.handle(Input::Tick, at(1060)).is_empty());
    }

    #[test]
    fn a_broken_way_to_a_node_is_a_failure_whatever_its_ranks_then_say() {
        let (mut job, now) = job(3);
        let told = job.handle(Input::Broken(1), now);
        assert_eq!(told, [Action::Look, Action::SignalRanks(libc::SIGTERM)]);
        assert!(job.handle(Input::Broken(2), now).is_empty());
        job.handle(Input::Ended(0, Ending::Signal(15)), now);
        job.handle(Input::Ended(1, Ending::Lost), now);
        assert_eq!(job.handle(Input::Ended(2, Ending::Exit(0)), now), [Action::Finish]);
        assert_eq!((job.code(), job.first_failure()), (137, Some((1, Ending::Lost))));
    }

    #[test]
    fn other_signals_are_only_passed_on() {
        let (mut job, now) = job(1);
        let passed = job.handle(Input::Signal(libc::SIGUSR1), now);
        assert_eq!(passed, [Action::SignalRanks(libc::SIGUSR1)]);
        assert!(job.handle(Input::Tick, now + GRACE * 2).is_empty());
    }

    proptest! {
        /// Whatever happens in whatever order, a job whose ranks all ended is over exactly once.
        #[test]
        fn every_job_finishes_once(
            ranks in 1u32..6,
            noise in proptest::collection::vec((0u8..5, 0u32..6), 0..30),
        ) {
            let (mut job, now) = job(ranks);
            let mut finished = 0;
            let ends = (0..ranks).map(|r| Input::Ended(r, Ending::Exit(0)));
            let inputs = noise.into_iter().map(|(kind, n)| match kind {
                0 => Input::Signal(libc::SIGTERM),
                1 => Input::Signal(libc::SIGUSR2),
                2 => Input::Ended(n % ranks, Ending::Exit(n as i32)),
                3 => Input::Broken(n % ranks),
                _ => Input::Tick,
            });
            for (i, input) in inputs.chain(ends).enumerate() {
                let actions = job.handle(input, now + Duration::from_secs(i as u64));
                finished += actions.iter().filter(|a| **a == Action::Finish).count();
            }
            prop_assert_eq!(finished, 1);
        }
    }
}
