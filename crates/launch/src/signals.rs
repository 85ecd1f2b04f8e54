//! The signals of the user and the scheduler.

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Why signals cannot be caught.
#[derive(Debug, thiserror::Error)]
#[error("signals cannot be caught: {0}")]
pub struct SignalError(#[from] std::io::Error);

/// Catches every signal that concerns a job, from when it is made to when it is dropped: also
/// between two starts of the job, when no rank runs.
#[derive(Debug)]
pub struct Caught {
    signals: Signals,
    asked_to_end: bool,
}

/// Whether a signal asks the job to end; the others are for the ranks alone.
pub fn asks_to_end(signal: i32) -> bool {
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal)
}

impl Caught {
    /// Starts catching. A signal that we were started to ignore, as `nohup` does, stays ignored.
    pub fn new() -> Result<Self, SignalError> {
        let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
        let signals = Signals::new(all.into_iter().filter(|&s| !is_ignored(s)))?;
        Ok(Self { signals, asked_to_end: false })
    }

    /// What came since the last question.
    pub fn pending(&mut self) -> Vec<i32> {
        let came: Vec<i32> = self.signals.pending().collect();
        self.asked_to_end |= came.iter().any(|&s| asks_to_end(s));
        came
    }

    /// Whether one that asks for an end has come so far.
    pub fn asked_to_end(&mut self) -> bool {
        self.pending();
        self.asked_to_end
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is a valid value, and the call writes to no other place.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}
