//! What the plug-in says in NCCL's log.

use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_plugin_abi::log::{Level, Logger, log};

/// The start of all messages.
const PREFIX: &str = "NET/Regatta:";

/// NCCL's logger, which it passes to `init` only.
static LOGGER: AtomicUsize = AtomicUsize::new(0);

/// Logs with this from now on.
pub fn set_logger(logger: Logger) {
    LOGGER.store(logger.map_or(0, |logger| logger as usize), Ordering::Release);
}

/// Logs for information.
pub fn info(text: &str) {
    write(Level::Info, text);
}

/// Logs a warning.
pub fn warn(text: &str) {
    write(Level::Warn, text);
}

fn write(level: Level, text: &str) {
    let address = LOGGER.load(Ordering::Acquire);
    // SAFETY: zero is `None`, and anything else was a logger of NCCL.
    let logger = unsafe { std::mem::transmute::<usize, Logger>(address) };
    log(logger, level, &format!("{PREFIX} {text}"));
}
