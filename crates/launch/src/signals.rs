//! Kinds, masks and actions of signals.

pub use regatta_model::result::is_termination_signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};

/// Signals handled by the job. All others keep their default action.
pub(crate) const HANDLED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
/// Job-control signals of a terminal, delivered through the original process only.
const JOB_CONTROL: [i32; 2] = [SIGTSTP, SIGCONT];
/// Signals by which a terminal stops background processes.
const STOP_SIGNALS: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Whether a signal stops or continues the job.
pub(crate) fn is_job_control(signal: i32) -> bool {
    JOB_CONTROL.contains(&signal)
}

/// Signals that the original process forwards; those ignored at start-up are excluded.
pub(crate) fn forwarded() -> impl Iterator<Item = i32> {
    HANDLED.into_iter().chain(JOB_CONTROL).filter(|&s| !is_ignored(s))
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and the call writes to it alone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Restores the default action of a signal.
pub(crate) fn reset(signal: i32) {
    // SAFETY: a plain system call; SIG_DFL is not a function of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Whether [`ignore_file_size_signal`] changed the action of SIGXFSZ.
static IGNORES_FILE_SIZE: AtomicBool = AtomicBool::new(false);

/// Ignores SIGXFSZ, so that a write beyond `ulimit -f` is an error like a full disk instead of the end of the
/// process. Programs that this process starts inherit this disposition until `restore_file_size_signal` resets
/// it in the child.
pub fn ignore_file_size_signal() {
    if !is_ignored(libc::SIGXFSZ) {
        // SAFETY: a plain system call; SIG_IGN is not a function of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        IGNORES_FILE_SIZE.store(true, Ordering::Relaxed);
    }
}

/// Undoes [`ignore_file_size_signal`]. Safe between fork and exec.
pub(crate) fn restore_file_size_signal() {
    if IGNORES_FILE_SIZE.load(Ordering::Relaxed) {
        reset(libc::SIGXFSZ);
    }
}

/// Stops this process until it receives SIGCONT.
pub(crate) fn stop() {
    // SAFETY: a plain system call on this process.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Keeps the terminal from stopping this process, also when it writes from the background under
/// `stty tostop`. Children inherit this until [`unblock_stop_signals`].
pub(crate) fn block_stop_signals() {
    SignalSet::of(STOP_SIGNALS).block();
}

/// Undoes [`block_stop_signals`]. Safe between fork and exec.
pub(crate) fn unblock_stop_signals() {
    SignalSet::of(STOP_SIGNALS).unblock();
}

/// A `sigset_t`.
pub(crate) struct SignalSet(libc::sigset_t);

impl SignalSet {
    pub(crate) fn of(signals: impl IntoIterator<Item = i32>) -> Self {
        // SAFETY: an all-zero sigset_t is valid, and the calls write to it alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            signals.into_iter().for_each(|s| {
                libc::sigaddset(&mut set, s);
            });
            Self(set)
        }
    }

    /// Blocks these signals and returns the previous mask.
    pub(crate) fn block(&self) -> Self {
        self.mask(libc::SIG_BLOCK)
    }

    fn unblock(&self) {
        self.mask(libc::SIG_UNBLOCK);
    }

    /// Makes this set the signal mask.
    pub(crate) fn set(&self) {
        self.mask(libc::SIG_SETMASK);
    }

    fn mask(&self, how: libc::c_int) -> Self {
        let mut previous = Self::of([]);
        // SAFETY: it reads one set and writes the other.
        unsafe { libc::pthread_sigmask(how, &self.0, &mut previous.0) };
        previous
    }

    /// Waits up to `timeout` for one of these signals, which must be blocked. Returns whether one arrived.
    pub(crate) fn wait_for(&self, timeout: Duration) -> bool {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        // SAFETY: it reads the set and the time; a null siginfo is allowed.
        unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &timeout) > 0 }
    }

    /// Waits for one of these signals, which must be blocked. `None` if interrupted.
    pub(crate) fn wait(&self) -> Option<i32> {
        // SAFETY: it reads the set; a null siginfo is allowed.
        let signal = unsafe { libc::sigwaitinfo(&self.0, std::ptr::null_mut()) };
        (signal > 0).then_some(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_a_pending_blocked_signal() {
        let set = SignalSet::of([SIGUSR2]);
        let previous = set.block();
        // SAFETY: a plain system call on this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), SIGUSR2) };
        assert_eq!(set.wait(), Some(SIGUSR2));
        previous.set();
    }
}
