//! The launcher's end of a rank's channel.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use regatta_wire::framing::{self, FrameDecoder, FrameError, PREFIX_LEN};
use rustix::event::{PollFd, PollFlags, poll};

use super::MAX_FRAME_LEN;

/// The launcher's end of a rank's channel. A rank that does not read its input does not delay its
/// frames, and the other way round.
#[derive(Debug)]
pub struct RankChannel {
    stream: UnixStream,
    /// `None` once it is sent.
    input: Option<InputFrame>,
    decoder: FrameDecoder,
}

/// The input frame of a rank. Ranks share the payload.
#[derive(Debug)]
struct InputFrame {
    prefix: [u8; PREFIX_LEN],
    payload: Arc<[u8]>,
    /// Number of bytes sent.
    sent: usize,
}

impl InputFrame {
    /// The next bytes to send; empty at the end.
    fn unsent(&self) -> &[u8] {
        match self.sent.checked_sub(PREFIX_LEN) {
            None => &self.prefix[self.sent..],
            Some(sent) => &self.payload[sent..],
        }
    }
}

impl RankChannel {
    /// Creates a channel and the descriptor of the rank's end. Both are close-on-exec.
    pub fn new(input: Arc<[u8]>) -> io::Result<(Self, OwnedFd)> {
        let prefix = framing::prefix(&input, MAX_FRAME_LEN).map_err(io::Error::other)?;
        let (stream, rank_end) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let input = Some(InputFrame { prefix, payload: input, sent: 0 });
        let decoder = FrameDecoder::new(MAX_FRAME_LEN);
        Ok((Self { stream, input, decoder }, rank_end.into()))
    }

    /// Sends the input and passes each frame to `on_frame` until the rank closes its end. Blocks.
    pub fn run(mut self, mut on_frame: impl FnMut(Vec<u8>)) -> Result<(), FrameError> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            self.wait_until_ready();
            self.send_input();
            let received = match self.stream.read(&mut buffer) {
                Ok(0) => return self.decoder.finish(),
                Ok(n) => n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
                // A reset means that the rank exited without reading its input.
                Err(_) => return self.decoder.finish(),
            };
            self.decoder.push(&buffer[..received], &mut on_frame)?;
        }
    }

    /// Waits until the socket is readable or, while input is left, writable.
    fn wait_until_ready(&self) {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.input.is_some());
        // On an interrupt the caller tries again.
        let _ = poll(&mut [PollFd::new(&self.stream, events)], None);
    }

    /// Sends as much of the input as the socket accepts.
    fn send_input(&mut self) {
        while let Some(input) = &mut self.input {
            match self.stream.write(input.unsent()) {
                Ok(n) => input.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // The rank exited or closed its end without reading the input.
                Err(_) => self.input = None,
            }
            self.input.take_if(|input| input.unsent().is_empty());
        }
    }
}
