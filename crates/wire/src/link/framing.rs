//! Framing: each payload is preceded by its length, a big-endian `u32`.

use super::send_buffer::SendBuffer;
use super::{LinkError, LinkEvent, MAX_FRAME_LEN, Result};

/// In place of a length: a heartbeat, which has no payload.
pub(super) const HEARTBEAT: u32 = u32::MAX;

/// Incremental decoder of the byte stream.
#[derive(Debug)]
pub(super) enum FrameDecoder {
    Length { bytes: [u8; 4], filled: usize },
    Payload { payload: Vec<u8>, remaining: usize },
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::Length { bytes: [0; 4], filled: 0 }
    }
}

impl FrameDecoder {
    /// Decodes bytes and appends the frames that are complete.
    pub(super) fn receive(&mut self, mut input: &[u8], events: &mut Vec<LinkEvent>) -> Result {
        while !input.is_empty() {
            input = match self {
                Self::Length { bytes, filled } => {
                    let (consumed, rest) = input.split_at(input.len().min(4 - *filled));
                    bytes[*filled..*filled + consumed.len()].copy_from_slice(consumed);
                    *filled += consumed.len();
                    rest
                }
                Self::Payload { payload, remaining } => {
                    // The buffer grows with the data that arrives: the announced length is not
                    // trusted.
                    let (consumed, rest) = input.split_at(input.len().min(*remaining));
                    payload.extend_from_slice(consumed);
                    *remaining -= consumed.len();
                    rest
                }
            };
            self.transition(events)?;
        }
        Ok(())
    }

    /// Moves on to the next part if the current one is complete.
    fn transition(&mut self, events: &mut Vec<LinkEvent>) -> Result {
        if let Self::Length { bytes, filled: 4 } = self {
            let len = u32::from_be_bytes(*bytes);
            *self = match len as usize {
                _ if len == HEARTBEAT => Self::default(),
                bytes if bytes > MAX_FRAME_LEN => return Err(LinkError::FrameTooLong { bytes }),
                remaining => Self::Payload { payload: Vec::new(), remaining },
            };
        }
        if let Self::Payload { payload, remaining: 0 } = self {
            events.push(LinkEvent::Frame(std::mem::take(payload)));
            *self = Self::default();
        }
        Ok(())
    }
}

/// Queues a payload. False if it exceeds [`MAX_FRAME_LEN`].
pub(super) fn write_frame(payload: &[u8], out: &mut SendBuffer) -> bool {
    if payload.len() > MAX_FRAME_LEN {
        return false;
    }
    out.push(&(payload.len() as u32).to_be_bytes());
    out.push(payload);
    true
}
