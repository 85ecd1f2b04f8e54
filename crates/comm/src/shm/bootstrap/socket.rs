//! Passes the segment's file descriptor over an abstract Unix socket.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use regatta_wire::clock;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::super::segment::Segment;
use super::time_left;
use crate::error::Peer;
use crate::{CommError, Result};

/// Pause between connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Sent by a rank to request the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JoinRequest {
    pub rank: u32,
    pub ranks: u32,
    pub shared_settings: u64,
}

impl JoinRequest {
    const BYTES: usize = 16;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.ranks.to_le_bytes());
        bytes[8..].copy_from_slice(&self.shared_settings.to_le_bytes());
        bytes
    }
}

fn socket_error(error: impl std::fmt::Display) -> CommError {
    let what = format!("node-local socket: {error}");
    CommError::bootstrap(what, "all ranks of a node must run as one user")
}

fn address(name: &str) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("regatta-comm/{name}")).map_err(socket_error)
}

/// Whether the peer process runs as the same user.
fn is_same_user(stream: &UnixStream) -> bool {
    let other = rustix::net::sockopt::socket_peercred(stream);
    other.is_ok_and(|other| other.uid == rustix::process::geteuid())
}

/// Rank 0: passes the segment to all other ranks.
pub(super) fn serve_segment(
    name: &str,
    segment: &Segment,
    own: JoinRequest,
    peers: &[Peer],
    deadline: Instant,
    cancelled: &dyn Fn() -> Option<CommError>,
) -> Result {
    let mut missing: Vec<u32> = (1..own.ranks).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let listener = UnixListener::bind_addr(&address(name)?).map_err(socket_error)?;
    listener.set_nonblocking(true).map_err(socket_error)?;
    while !missing.is_empty() {
        let awaited = missing.iter().map(|rank| &peers[*rank as usize]);
        let rest = time_left(awaited, deadline, cancelled)?;
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(RETRY_INTERVAL.min(rest));
            continue;
        };
        // Connections of other jobs are ignored; they must not block this job's ranks.
        if let Some(rank) = send_segment(&stream, segment, own, &missing) {
            missing.retain(|r| *r != rank);
        }
    }
    Ok(())
}

/// Passes the segment to a connected process, if it is one of the missing ranks.
fn send_segment(
    mut stream: &UnixStream,
    segment: &Segment,
    own: JoinRequest,
    missing: &[u32],
) -> Option<u32> {
    if !is_same_user(stream) {
        return None;
    }
    let mut received = [0; JoinRequest::BYTES];
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.read_exact(&mut received).ok()?;
    let is_from = |&rank: &u32| JoinRequest { rank, ..own }.bytes() == received;
    let rank = missing.iter().copied().find(is_from)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [segment.file.as_fd()];
    rights.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(&[1])], &mut rights, SendFlags::NOSIGNAL).ok()?;
    Some(rank)
}

/// Other ranks: request the segment from rank 0 until it listens.
pub(super) fn receive_segment(
    name: &str,
    request: JoinRequest,
    deadline: Instant,
    cancelled: &dyn Fn() -> Option<CommError>,
) -> Result<OwnedFd> {
    let address = address(name)?;
    let mut why = "no connection attempt".to_owned();
    while clock::now() < deadline {
        match UnixStream::connect_addr(&address) {
            Ok(stream) if !is_same_user(&stream) => {
                return Err(socket_error("the name is bound by another user"));
            }
            Ok(stream) => match request_segment(stream, request, deadline) {
                Ok(file) => return Ok(file),
                Err(error) => why = error,
            },
            Err(error) => why = error.to_string(),
        }
        if let Some(error) = cancelled() {
            return Err(error);
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
    let what = format!("no shared memory from rank 0: {why}");
    Err(CommError::bootstrap(what, "check that rank 0 of this node is running"))
}

fn request_segment(
    mut stream: UnixStream,
    request: JoinRequest,
    deadline: Instant,
) -> Result<OwnedFd, String> {
    let text = |error: std::io::Error| error.to_string();
    let rest = deadline.saturating_duration_since(clock::now()).max(RETRY_INTERVAL);
    stream.set_read_timeout(Some(rest)).map_err(text)?;
    stream.write_all(&request.bytes()).map_err(text)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let receive = || recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut rights, flags);
    rustix::io::retry_on_intr(receive).map_err(|error| error.to_string())?;
    let file = rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| "refused: duplicate rank or different configuration".to_owned())
}
