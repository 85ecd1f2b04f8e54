//! Standard output, standard error and channel of ranks: one thread for each, and one that waits for
//! the exit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use crate::channel::{RankChannel, RankFrame};
use crate::event_queue::{ByteLen, EventQueue};
use crate::lines::{LineSplitter, MergedLine};
use crate::process;
use crate::run_folder::log_truncated;
use crate::worker_group::JobEvent;

/// Events that must not wait behind output.
pub enum ControlEvent {
    /// A rank exited and is still to be reaped.
    Exited(u32),
    /// A stream of a rank reached end of file.
    StreamClosed(u32),
    /// A rank lost another one, or output is lost: a log is incomplete, or a channel failed.
    Job(JobEvent),
}

impl ByteLen for JobEvent {
    fn byte_len(&self) -> usize {
        match self {
            JobEvent::Line(line) => line.text.len(),
            JobEvent::Output { bytes, .. } | JobEvent::Frame { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

/// Where the complete output of a stream goes.
pub enum Log {
    /// A file, and its name in warnings.
    File(File, String),
    /// The queue, as [`JobEvent::Output`].
    Forward,
}

/// One stream of a rank.
#[derive(Clone, Copy)]
pub struct StreamId {
    pub rank: u32,
    pub stderr: bool,
}

/// What ranks do, and their lines, raw output and frames.
pub type Events = Arc<EventQueue<ControlEvent, JobEvent>>;

/// Spawns a thread; fails where the process limit is reached.
fn spawn_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().stack_size(128 * 1024).spawn(work).map(drop)
}

/// Reports the exit of a rank's process.
pub fn watch_exit(pid: u32, events: Events, rank: u32) -> io::Result<()> {
    spawn_thread(move || {
        process::wait_for_exit(pid);
        events.push_control(ControlEvent::Exited(rank));
    })
}

/// Forwards one stream of a rank: unbuffered to its log, so that a crash of this process loses
/// nothing, and line by line to the queue.
pub fn forward_stream(
    mut stream: impl Read + Send + 'static,
    mut log: Log,
    events: Events,
    StreamId { rank, stderr }: StreamId,
) -> io::Result<()> {
    spawn_thread(move || {
        let mut splitter = LineSplitter::default();
        let mut buffer = vec![0; 64 * 1024];
        let mut truncated = false;
        loop {
            let bytes = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => &buffer[..n],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            match &mut log {
                // A full disk must not stop the rank, but the user must learn of it.
                Log::File(file, name) => {
                    if let Err(error) = file.write_all(bytes)
                        && !std::mem::replace(&mut truncated, true)
                    {
                        let warning = JobEvent::Warning(log_truncated(name, &error));
                        events.push_control(ControlEvent::Job(warning));
                    }
                }
                Log::Forward => {
                    events.push_output(JobEvent::Output { rank, stderr, bytes: bytes.to_vec() });
                }
            }
            for text in splitter.push(bytes, Instant::now()) {
                events.push_output(JobEvent::Line(MergedLine::of(rank, stderr, text)));
            }
        }
        if let Some(text) = splitter.finish() {
            events.push_output(JobEvent::Line(MergedLine::of(rank, stderr, text)));
        }
        events.push_control(ControlEvent::StreamClosed(rank));
    })
}

/// Sends a rank its input and forwards the frames that it sends. An invalid frame closes the
/// channel, which the rank notices when it sends the next.
pub fn forward_frames(channel: RankChannel, events: Events, rank: u32) -> io::Result<()> {
    spawn_thread(move || {
        let result = channel.run(|frame| match RankFrame::parse(frame) {
            RankFrame::Message(bytes) => events.push_output(JobEvent::Frame { rank, bytes }),
            RankFrame::LostPeer(peer) => {
                events.push_control(ControlEvent::Job(JobEvent::LostPeer { rank, peer }));
            }
        });
        if let Err(error) = result {
            let warning =
                format!("rank {rank}: {error}; further messages of this rank are dropped");
            events.push_control(ControlEvent::Job(JobEvent::Warning(warning)));
        }
        events.push_control(ControlEvent::StreamClosed(rank));
    })
}
