//! Commands on a pseudoterminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Primary and replica of a pseudoterminal of 80 x 24 characters.
fn open_pty() -> (File, OwnedFd) {
    let (mut primary, mut replica) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let name = std::ptr::null_mut();
    // SAFETY: the file descriptors and the size are valid for the call; name and modes may be null.
    let code = unsafe { libc::openpty(&mut primary, &mut replica, name, std::ptr::null(), &size) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were opened above and have no other owner.
    unsafe { (File::from_raw_fd(primary), OwnedFd::from_raw_fd(replica)) }
}

/// Starts a command on a pseudoterminal with colours, unless these environment variables differ.
pub fn spawn_on_pty(mut command: Command, variables: &[(&str, &str)]) -> (File, Child) {
    let (primary, replica) = open_pty();
    let tty = || replica.try_clone().unwrap();
    command.env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
    command.envs(variables.iter().copied());
    let child = command.stdin(tty()).stdout(tty()).stderr(tty()).spawn().unwrap();
    (primary, child)
}

/// Output until all processes have closed the replica, and the exit status.
pub fn output((mut primary, mut child): (File, Child)) -> (String, ExitStatus) {
    let mut shown = Vec::new();
    // Once the replica is closed, reading fails with EIO.
    let _ = primary.read_to_end(&mut shown);
    (String::from_utf8_lossy(&shown).into_owned(), child.wait().unwrap())
}

/// A command on a pseudoterminal, killed on drop.
pub struct PtyProcess {
    primary: File,
    pub child: Child,
}

impl PtyProcess {
    pub fn new((primary, child): (File, Child)) -> Self {
        Self { primary, child }
    }

    /// Output until it satisfies a condition.
    pub fn read_until(&mut self, what: &str, is_enough: impl Fn(&str) -> bool) -> String {
        let mut shown = String::new();
        while !is_enough(&shown) {
            let more = self.read_for(Duration::from_secs(60));
            assert!(!more.is_empty(), "no {what} in {shown:?}");
            shown += &more;
        }
        shown
    }

    /// Output until there is none for this long.
    pub fn read_until_silent(&mut self, silence: Duration) -> String {
        let mut shown = String::new();
        loop {
            match self.read_for(silence) {
                more if more.is_empty() => return shown,
                more => shown += &more,
            }
        }
    }

    /// The next output; empty if there is none within this time, or all processes have closed the replica.
    pub fn read_for(&mut self, timeout: Duration) -> String {
        let mut poll =
            libc::pollfd { fd: self.primary.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, which the call writes to.
        let count = unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) };
        let mut bytes = [0; 65536];
        let count = if count == 1 { self.primary.read(&mut bytes).unwrap_or(0) } else { 0 };
        // Frames have multi-byte characters, which two reads may share.
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

impl Drop for PtyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
