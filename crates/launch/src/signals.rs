//! The signals of the user and the scheduler.

use std::time::{Duration, Instant};

use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;

use crate::warden;

/// What is caught. The rest does what it does to any process.
const CAUGHT: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
/// What stops and continues a job at a terminal; it comes through the warden alone.
const JOB_CONTROL: [i32; 2] = [SIGTSTP, SIGCONT];
/// What a terminal stops processes with that are not in its foreground.
const STOPS: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Why signals cannot be caught.
#[derive(Debug, thiserror::Error)]
#[error("signals cannot be caught: {0}")]
pub struct SignalError(#[from] std::io::Error);

/// Catches every signal that concerns a job, from when it is made to when it is dropped: also
/// between two starts of the job, when no rank runs.
#[derive(Debug)]
pub struct Caught {
    signals: Signals,
    echoes: Echoes,
    /// The first that asked for an end.
    end: Option<i32>,
}

/// Whether a signal asks the job to end; the others are for the ranks alone.
pub fn asks_to_end(signal: i32) -> bool {
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal)
}

impl Caught {
    /// Starts catching. A signal that we were started to ignore, as `nohup` does, stays ignored.
    pub fn new() -> Result<Self, SignalError> {
        let signals = Signals::new(CAUGHT.into_iter().filter(|&s| !is_ignored(s)))?;
        warden::attend();
        Ok(Self { signals, echoes: Echoes::default(), end: None })
    }

    /// What came since the last question: to us, or to the warden.
    pub fn pending(&mut self) -> Vec<i32> {
        let straight: Vec<i32> = self.signals.pending().collect();
        let came = self.echoes.left_out(&warden::passed_on(), &straight, Instant::now());
        self.end = self.end.or(came.iter().copied().find(|&s| asks_to_end(s)));
        came
    }

    /// The first one that asks for an end, if one has come so far.
    pub fn end(&mut self) -> Option<i32> {
        self.pending();
        self.end
    }
}

/// The way a signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Warden,
    Straight,
}

/// Some schedulers signal every process of a job. One signal then comes twice, to the warden and to
/// us, and must not count as the second one, which kills.
#[derive(Debug, Default)]
struct Echoes {
    /// What came lately and had no echo yet.
    lately: Vec<(i32, Way, Instant)>,
}

/// How long after a signal its echo may come.
const ECHO: Duration = Duration::from_secs(1);

impl Echoes {
    /// The signals of both ways, without echoes.
    fn left_out(&mut self, passed_on: &[i32], straight: &[i32], now: Instant) -> Vec<i32> {
        self.lately.retain(|(_, _, when)| now.saturating_duration_since(*when) < ECHO);
        let passed_on = passed_on.iter().map(|s| (*s, Way::Warden));
        let straight = straight.iter().map(|s| (*s, Way::Straight));
        passed_on
            .chain(straight)
            .filter(|&(s, way)| !self.is_echo(s, way, now))
            .map(|s| s.0)
            .collect()
    }

    fn is_echo(&mut self, signal: i32, way: Way, now: Instant) -> bool {
        let of = self.lately.iter().position(|(s, w, _)| *s == signal && *w != way);
        match of {
            Some(at) => {
                self.lately.remove(at);
            }
            None => self.lately.push((signal, way, now)),
        }
        of.is_some()
    }
}

/// What a warden passes on, of this process: not what it was started to ignore.
pub(crate) fn passed_on() -> impl Iterator<Item = i32> {
    CAUGHT.into_iter().chain(JOB_CONTROL).filter(|&s| !is_ignored(s))
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is a valid value, and the call writes to no other place.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Has a signal do what it does by default.
pub(crate) fn reset(signal: i32) {
    // SAFETY: a plain system call; the default action is no function of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Stops this process until somebody continues it.
pub(crate) fn stop() {
    // SAFETY: a plain system call on this process.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Keeps the terminal from stopping this process; also for writing to it from the background, where
/// `stty tostop` is set. What it starts is kept from it too, until [`may_stop`].
pub(crate) fn never_stop() {
    Set::of(STOPS).block();
}

/// Takes [`never_stop`] back. Safe between fork and exec.
pub(crate) fn may_stop() {
    Set::of(STOPS).unblock();
}

/// A set of signals, in the kernel's form.
pub(crate) struct Set(libc::sigset_t);

impl Set {
    pub(crate) fn of(signals: impl IntoIterator<Item = i32>) -> Self {
        // SAFETY: an all-zero sigset_t is a valid value, and the calls write to it alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            signals.into_iter().for_each(|s| {
                libc::sigaddset(&mut set, s);
            });
            Self(set)
        }
    }

    /// Blocks these, and returns what was blocked before.
    pub(crate) fn block(&self) -> Self {
        self.mask(libc::SIG_BLOCK)
    }

    /// Unblocks these.
    fn unblock(&self) {
        self.mask(libc::SIG_UNBLOCK);
    }

    /// Blocks these and no other.
    pub(crate) fn set(&self) {
        self.mask(libc::SIG_SETMASK);
    }

    fn mask(&self, how: libc::c_int) -> Self {
        let mut before = Self::of([]);
        // SAFETY: it reads one set and writes the other.
        unsafe { libc::pthread_sigmask(how, &self.0, &mut before.0) };
        before
    }

    /// Waits for one of these, which must be blocked. `None`: something else came between.
    pub(crate) fn wait(&self) -> Option<i32> {
        // SAFETY: it reads the set; nobody wants to know more of the signal.
        let signal = unsafe { libc::sigwaitinfo(&self.0, std::ptr::null_mut()) };
        (signal > 0).then_some(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_every_process_counts_once() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut echoes = Echoes::default();
        assert_eq!(echoes.left_out(&[SIGTERM], &[SIGTERM], at(0)), [SIGTERM]);
        assert_eq!(echoes.left_out(&[], &[SIGINT], at(10)), [SIGINT]);
        assert!(echoes.left_out(&[SIGINT], &[], at(60)).is_empty(), "also a moment later");
        assert_eq!(echoes.left_out(&[SIGINT], &[], at(70)), [SIGINT], "but not twice");
        assert_eq!(echoes.left_out(&[], &[SIGINT], at(5000)), [SIGINT], "nor for ever");
    }

    #[test]
    fn signals_of_one_way_all_count() {
        let now = Instant::now();
        let mut echoes = Echoes::default();
        let passed_on = [SIGINT, SIGINT, SIGTSTP, SIGCONT];
        assert_eq!(echoes.left_out(&passed_on, &[SIGUSR1], now), [2, 2, SIGTSTP, SIGCONT, SIGUSR1]);
        assert_eq!(echoes.left_out(&[SIGINT], &[], now), [SIGINT]);
    }

    #[test]
    fn a_blocked_signal_is_waited_for() {
        let set = Set::of([SIGUSR2]);
        let before = set.block();
        // SAFETY: a plain system call on this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), SIGUSR2) };
        assert_eq!(set.wait(), Some(SIGUSR2));
        before.set();
    }
}
