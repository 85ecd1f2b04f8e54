//! The output of the ranks on the terminal. A thread writes it, so that the launcher still handles
//! signals when the terminal blocks (Ctrl-S, a pager, a pipe without a reader).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use regatta_launch::job::JobObserver;
use regatta_launch::lines::MergedLine;
use regatta_model::hostlist;
use regatta_model::units::pluralize;

use super::Observer;
use crate::cli::FAINT;
use crate::draw::text::format_ranges;
use crate::output;

/// Time after which lines for a blocked terminal are dropped.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a host list in a line's prefix, in characters.
const MAX_HOST_LIST: usize = 40;
/// Capacity of the queue to the writer, in lines.
const QUEUE: usize = 4096;
/// Maximum size of one write, in bytes.
const WRITE_SIZE: usize = 64 * 1024;

/// A message to the writer thread.
enum WriterMessage {
    Line {
        error: bool,
        text: String,
    },
    /// Acknowledged when everything before it has been written.
    Flush(SyncSender<()>),
}

/// The terminal, and the file of `--tee`.
pub struct Console<'a> {
    /// Host of each rank.
    hosts: Vec<String>,
    /// Ranks to show; all if empty.
    shown_ranks: Vec<u32>,
    tee: Option<File>,
    /// The first error in writing to `tee`.
    tee_error: Option<std::io::Error>,
    writer: SyncSender<WriterMessage>,
    /// A message for which the queue had no room.
    pending: Option<WriterMessage>,
    /// When the queue became full.
    stalled_since: Option<Instant>,
    dropped: usize,
    observer: Observer<'a>,
}

impl<'a> Console<'a> {
    /// A console that shows the lines of `ranks`, or of all ranks if empty.
    pub fn new(ranks: &[u32], tee: Option<&Path>, observer: Observer<'a>) -> Result<Self> {
        let open = |path: &Path| {
            File::create(path)
                .with_context(|| format!("--tee {}: cannot create the file", path.display()))
        };
        let (writer, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("console".to_owned())
            .spawn(move || write_lines(&receiver))
            .context("start the console thread")?;
        Ok(Self {
            hosts: Vec::new(),
            shown_ranks: ranks.to_vec(),
            tee: tee.map(open).transpose()?,
            tee_error: None,
            writer,
            pending: None,
            stalled_since: None,
            dropped: 0,
            observer,
        })
    }

    /// Shows a line prefixed with its hosts and ranks; returns false if the queue is full.
    fn show(&mut self, line: &MergedLine) -> bool {
        if !self.send_pending() {
            return false;
        }
        if let Some(observer) = &mut self.observer {
            observer.on_line();
        }
        let is_shown_rank = |rank: &u32| self.shown_ranks.contains(rank);
        if !self.shown_ranks.is_empty() && !line.ranks.iter().any(is_shown_rank) {
            return true;
        }
        let prefix = self.prefix(&line.ranks);
        if let Some(tee) = &mut self.tee {
            let written = tee.write_all(format!("[{prefix}] {}\n", line.text).as_bytes());
            self.tee_error = self.tee_error.take().or(written.err());
        }
        let text = format!("{FAINT}[{prefix}]{FAINT:#} {}\n", line.text);
        self.pending = Some(WriterMessage::Line { error: line.stderr, text });
        self.send_pending();
        true
    }

    /// Whether the observer prints the path of the run folder.
    pub fn prints_run_dir(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.prints_run_dir())
    }

    /// Sets the host of each rank.
    pub fn set_hosts(&mut self, hosts: &[String]) {
        self.hosts = hosts.to_vec();
    }

    /// Hosts and ranks of a line: `node1 3`, `node[1-2] all 8`.
    fn prefix(&self, ranks: &[u32]) -> String {
        let host = |rank: u32| self.hosts.get(rank as usize).map_or("?", String::as_str);
        let mut hosts: Vec<&str> = ranks.iter().map(|&r| host(r)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let hosts = match hosts.as_slice() {
            [host] => (*host).to_owned(),
            many => {
                let list = hostlist::compress(many);
                if list.len() <= MAX_HOST_LIST { list } else { format!("{} nodes", many.len()) }
            }
        };
        match ranks {
            [rank] => format!("{hosts} {rank}"),
            all if all.len() == self.hosts.len() => format!("{hosts} all {}", all.len()),
            some => format!("{hosts} {}", format_ranges(some)),
        }
    }

    /// Waits until all lines are written, unless the terminal blocks, and notes dropped lines.
    pub fn flush(&mut self) {
        let (done, flushed) = sync_channel(1);
        self.wait_for_writer();
        self.pending = Some(WriterMessage::Flush(done));
        self.wait_for_writer();
        let _ = flushed.recv_timeout(STALL_TIMEOUT);
        if let Some(error) = self.tee_error.take() {
            output::note(&format!("the file of --tee is incomplete: {error}"));
        }
        if self.dropped > 0 {
            let lines = pluralize(std::mem::take(&mut self.dropped), "line");
            let cause = "the terminal was blocked; the logs are complete";
            output::note(&format!("{lines} not shown because {cause}"));
        }
    }

    /// Sends the pending message; false if the queue is full. A slow terminal thus applies
    /// backpressure to the ranks; lines for one that stays blocked are dropped until it recovers.
    fn send_pending(&mut self) -> bool {
        let Some(message) = self.pending.take() else { return true };
        match self.writer.try_send(message) {
            Ok(()) => self.stalled_since = None,
            Err(TrySendError::Full(message)) if !self.is_stalled() => {
                self.pending = Some(message);
                return false;
            }
            Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) => {
                self.dropped += usize::from(matches!(lost, WriterMessage::Line { .. }));
            }
        }
        true
    }

    /// Whether the queue has been full for too long.
    fn is_stalled(&mut self) -> bool {
        self.stalled_since.get_or_insert_with(Instant::now).elapsed() >= STALL_TIMEOUT
    }

    fn wait_for_writer(&mut self) {
        while !self.send_pending() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl JobObserver for Console<'_> {
    fn on_line(&mut self, line: &MergedLine) -> bool {
        self.show(line)
    }

    fn on_frame(&mut self, rank: u32, bytes: &[u8]) -> String {
        let observer = self.observer.as_mut();
        observer.map_or_else(String::new, |observer| observer.on_frame(rank, bytes))
    }

    fn on_signal(&mut self, signal: i32) {
        if let Some(observer) = &mut self.observer {
            observer.on_signal(signal);
        }
    }
}

/// The writer thread. Ignores errors: a closed terminal must not end the job, and the logs are
/// complete.
fn write_lines(messages: &Receiver<WriterMessage>) {
    let mut next = messages.recv().ok();
    while let Some(message) = next.take() {
        match message {
            WriterMessage::Line { error, mut text } => {
                next = coalesce(messages, error, &mut text);
                match error {
                    true => output::eprint(&text),
                    false => drop(output::print(&text)),
                }
            }
            WriterMessage::Flush(done) => drop(done.send(())),
        }
        next = next.or_else(|| messages.recv().ok());
    }
}

/// Appends queued lines for the same stream, because a write per line is slower than the ranks;
/// returns the message after them.
fn coalesce(
    messages: &Receiver<WriterMessage>,
    error: bool,
    text: &mut String,
) -> Option<WriterMessage> {
    while text.len() < WRITE_SIZE {
        match messages.try_recv().ok()? {
            WriterMessage::Line { error: same, text: line } if same == error => {
                text.push_str(&line);
            }
            other => return Some(other),
        }
    }
    None
}
