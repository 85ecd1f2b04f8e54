//! The rank's end of its channel.

use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use regatta_wire::framing::{self, FrameDecoder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ChannelError, FrameKind, MAX_FRAME_LEN, VARIABLE, decode};

/// The rank's end of its channel.
#[derive(Debug)]
pub struct RankEnd {
    stream: UnixStream,
}

impl RankEnd {
    /// Takes the channel over from the environment: removes the variable and sets close-on-exec, so
    /// that children of the rank do not inherit it. `None` without a channel.
    ///
    /// # Safety
    ///
    /// No other thread may access the environment meanwhile, and no other code of this process may
    /// own the descriptor: call it once, before threads are started.
    pub unsafe fn take_from_env() -> Result<Option<Self>, ChannelError> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
        // SAFETY: the caller guarantees that no other thread accesses the environment.
        unsafe { std::env::remove_var(VARIABLE) };
        let invalid = || ChannelError::NotASocket(value.to_string_lossy().into_owned());
        let fd: RawFd = value.to_str().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
        if !is_unix_socket(fd) {
            return Err(invalid());
        }
        // SAFETY: the descriptor is open, and the caller guarantees that no other code owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self::new(fd).map(Some).map_err(ChannelError::Io)
    }

    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Self { stream: UnixStream::from(fd) })
    }

    /// Waits for the input that the launcher sends at the start.
    pub fn recv_input<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        let mut decoder = FrameDecoder::new(MAX_FRAME_LEN);
        let mut frames = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        while frames.is_empty() {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    decoder.finish()?;
                    return Err(ChannelError::Closed);
                }
                Ok(n) => decoder.push(&buffer[..n], |frame| frames.push(frame))?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        decode(&frames[0])
    }

    /// Sends a message to the launcher. Blocks while the launcher does not keep up.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        self.send_frame(FrameKind::Message, message)
    }

    /// Reports that this rank fails because it lost another: the other failed first.
    pub fn report_lost_peer(&mut self, peer: u32) -> Result<(), ChannelError> {
        self.send_frame(FrameKind::LostPeer, &peer)
    }

    /// Another handle of the same channel.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()? })
    }

    fn send_frame(
        &mut self,
        kind: FrameKind,
        message: &impl Serialize,
    ) -> Result<(), ChannelError> {
        let mut payload = vec![kind as u8];
        serde_json::to_writer(&mut payload, message).map_err(ChannelError::Encode)?;
        self.stream.write_all(&framing::prefix(&payload, MAX_FRAME_LEN)?)?;
        Ok(self.stream.write_all(&payload)?)
    }
}

fn is_unix_socket(fd: RawFd) -> bool {
    let mut domain: libc::c_int = 0;
    let mut len = size_of_val(&domain) as libc::socklen_t;
    let value = (&raw mut domain).cast();
    // SAFETY: `value` is writable for `len` bytes; a wrong descriptor is an error.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &mut len) };
    result == 0 && domain == libc::AF_UNIX
}
