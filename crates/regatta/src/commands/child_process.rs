//! Child processes of this program: a process launches ranks only once, so a command that needs
//! several launches starts itself for each.

use std::io::{ErrorKind, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_launch::signal_catcher::SignalCatcher;
use rustix::process::{Pid, Signal, kill_process};

/// Interval at which the child and signals are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits for a child and forwards signals, so that it can save its result.
pub fn wait_for(command: &mut Command, signals: &mut SignalCatcher) -> Result<ExitStatus> {
    let mut child = command.spawn().context("cannot start a child run")?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child run")? {
            return Ok(status);
        }
        forward_signals(&child, signals);
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Like [`wait_for`]; also returns what the child wrote to its standard output.
pub fn output_of(
    command: &mut Command,
    signals: &mut SignalCatcher,
) -> Result<(ExitStatus, Vec<u8>)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start a child run")?;
    let mut stdout = child.stdout.take().context("no standard output")?;
    rustix::io::ioctl_fionbio(&stdout, true).context("cannot read from a child run")?;
    let (mut output, mut block) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match stdout.read(&mut block) {
            Ok(0) => break,
            Ok(read) => output.extend_from_slice(&block[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                forward_signals(&child, signals);
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(error).context("cannot read from a child run"),
        }
    }
    Ok((child.wait().context("cannot wait for a child run")?, output))
}

fn forward_signals(child: &Child, signals: &mut SignalCatcher) {
    for signal in signals.pending() {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }
}
