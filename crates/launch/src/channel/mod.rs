//! A channel between the launcher and a rank: a socket pair that carries length-prefixed frames. The
//! launcher sends one input frame at the start of the rank, and receives the frames that the rank
//! sends: messages to the command that launched it, and the peer that it lost.
//!
//! Messages are encoded once, as JSON: most of them are parts of documents, whose optional fields are
//! absent, so that a format without field names cannot hold them.

mod launcher_end;
mod rank_end;

pub(crate) use launcher_end::RankChannel;
pub use rank_end::RankEnd;

use regatta_wire::framing::FrameError;
use regatta_wire::link;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum payload length in bytes. An agent forwards a frame in one message of the same maximum
/// length, which needs a few bytes for the rank and the attempt.
pub const MAX_FRAME_LEN: usize = link::MAX_FRAME_LEN - 64;

/// The descriptor of the rank's end of the channel. Absent without a channel.
pub const VARIABLE: &str = "REGATTA_CHANNEL_FD";

/// A frame that a rank sends.
#[derive(Debug, PartialEq)]
pub(crate) enum RankFrame {
    /// An encoded message to the command that launched the ranks.
    Message(Vec<u8>),
    /// The rank fails because it lost this rank.
    LostPeer(u32),
}

/// The first byte of a frame of a rank: what follows.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Message,
    LostPeer,
}

impl RankFrame {
    /// Parses a frame, without decoding a message. Invalid frames are messages, too: their receiver
    /// reports that it cannot decode them.
    pub(crate) fn parse(mut frame: Vec<u8>) -> Self {
        let kind = (!frame.is_empty()).then(|| frame.remove(0));
        let is_peer = kind == Some(FrameKind::LostPeer as u8);
        let peer = is_peer.then(|| decode(&frame).ok()).flatten();
        peer.map_or(Self::Message(frame), Self::LostPeer)
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
    Encode(serde_json::Error),
    /// A frame does not hold the expected type.
    #[error("invalid message: {0}; run the same regatta version on every node")]
    Decode(serde_json::Error),
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
    serde_json::to_vec(message).map_err(ChannelError::Encode)
}

/// Decodes the payload of a frame, which must use all bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ChannelError> {
    serde_json::from_slice(bytes).map_err(ChannelError::Decode)
}

/// Decodes a frame that a rank sent.
pub fn decode_from<T: DeserializeOwned>(rank: u32, bytes: &[u8]) -> Result<T, ChannelError> {
    decode(bytes).map_err(|error| ChannelError::Rank { rank, error: Box::new(error) })
}

#[cfg(test)]
mod tests;
