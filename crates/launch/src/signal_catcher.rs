//! Signals from the user and the scheduler.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use regatta_wire::clock;
use signal_hook::iterator::Signals;

use crate::job_host::JobHost;
use crate::reaper;
use crate::signal_dedup::ProcessSignalDedup;
use crate::signals::{HANDLED, is_ignored, is_termination_signal};

/// Signal handlers could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("cannot install signal handlers: {0}")]
pub struct SignalError(#[from] std::io::Error);

/// The first termination signal of this process that a [`SignalCatcher`] received; 0: none.
static TERMINATED_BY: AtomicI32 = AtomicI32::new(0);

/// The first termination signal that a job of this process received.
pub fn terminated_by() -> Option<i32> {
    Some(TERMINATED_BY.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Catches the signals of a job during its lifetime, including the time between two attempts.
#[derive(Debug)]
pub struct SignalCatcher {
    signals: Signals,
    dedup: ProcessSignalDedup,
    /// First termination signal.
    termination: Option<i32>,
}

impl SignalCatcher {
    /// Installs the handlers. A signal that was ignored at start-up, as under `nohup`, stays
    /// ignored.
    pub fn new() -> Result<Self, SignalError> {
        let signals = Signals::new(HANDLED.into_iter().filter(|&s| !is_ignored(s)))?;
        reaper::queue_signals();
        Ok(Self { signals, dedup: ProcessSignalDedup::default(), termination: None })
    }
}

impl JobHost for SignalCatcher {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn running_time(&self) -> Instant {
        clock::now()
    }

    /// Signals since the last call, to this process or to the original process, without duplicates.
    /// Every main loop polls them, which is also its heartbeat to the reaper.
    fn signals(&mut self) -> Vec<i32> {
        reaper::heartbeat();
        let now = Instant::now();
        let mut signals = reaper::take_signals();
        signals.extend(self.signals.pending());
        signals.retain(|&signal| self.dedup.is_new(signal, now));
        let termination = signals.iter().copied().find(|&s| is_termination_signal(s));
        self.termination = self.termination.or(termination);
        if let Some(signal) = termination {
            let order = Ordering::Relaxed;
            let _ = TERMINATED_BY.compare_exchange(0, signal, order, order);
        }
        signals
    }

    fn termination(&mut self) -> Option<i32> {
        self.signals();
        self.termination
    }
}
