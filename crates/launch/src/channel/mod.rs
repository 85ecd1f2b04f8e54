//! A channel between the launcher and a rank: a socket pair that carries length-prefixed frames,
//! encoded with postcard. The launcher sends one input frame at the start of the rank, and receives
//! the frames that the rank sends: messages to the command that launched it, and the peer that it
//! lost.

mod json;
mod launcher_end;
mod rank_end;

pub use json::Json;
pub(crate) use launcher_end::RankChannel;
pub use rank_end::RankEnd;

use regatta_wire::framing::FrameError;
use regatta_wire::link;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum payload length in bytes. An agent forwards a frame in one message of the same maximum
/// length, which needs a few bytes for the rank and the attempt.
pub const MAX_FRAME_LEN: usize = link::MAX_FRAME_LEN - 64;

/// The descriptor of the rank's end of the channel. Absent without a channel.
pub const VARIABLE: &str = "REGATTA_CHANNEL_FD";

/// A frame that a rank sends.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RankFrame<T> {
    /// A message to the command that launched the ranks.
    Message(T),
    /// The rank fails because it lost this rank.
    LostPeer(u32),
}

impl RankFrame<Vec<u8>> {
    /// Parses a frame, without decoding a message. Invalid frames are messages, too: their receiver
    /// reports that it cannot decode them.
    pub(crate) fn parse(mut frame: Vec<u8>) -> Self {
        match decode::<RankFrame<()>>(&frame) {
            Ok(RankFrame::LostPeer(peer)) => return Self::LostPeer(peer),
            // The variant precedes the message.
            Ok(RankFrame::Message(())) | Err(_) if !frame.is_empty() => drop(frame.remove(0)),
            _ => {}
        }
        Self::Message(frame)
    }
}

/// Why a channel failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The variable does not name a socket.
    #[error(
        "{VARIABLE}={0} is not a descriptor of a socket: regatta sets it for the ranks that it \
         starts; unset it"
    )]
    NotASocket(String),
    /// The byte stream is invalid.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A value could not be encoded.
    #[error("cannot encode a message: {0}")]
    Encode(postcard::Error),
    /// A frame does not hold the expected type.
    #[error("invalid message: {0}; run the same regatta version on every node")]
    Decode(String),
    /// A frame of a rank does not hold the expected type.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Cause.
        error: Box<ChannelError>,
    },
    /// The launcher closed the channel before it sent the input.
    #[error("the launcher closed the channel before it sent the input")]
    Closed,
    /// The socket failed.
    #[error("channel to the launcher: {0}")]
    Io(#[from] std::io::Error),
}

/// Encodes the payload of a frame.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, ChannelError> {
    postcard::to_stdvec(message).map_err(ChannelError::Encode)
}

/// Decodes the payload of a frame, which must use all bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ChannelError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(ChannelError::Decode(format!("{} trailing bytes", rest.len()))),
        Err(error) => Err(ChannelError::Decode(error.to_string())),
    }
}

/// Decodes a frame that a rank sent.
pub fn decode_from<T: DeserializeOwned>(rank: u32, bytes: &[u8]) -> Result<T, ChannelError> {
    decode(bytes).map_err(|error| ChannelError::Rank { rank, error: Box::new(error) })
}

#[cfg(test)]
mod tests;
