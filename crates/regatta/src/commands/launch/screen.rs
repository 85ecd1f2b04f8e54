//! What ranks write, on the terminal. A terminal may stop (Ctrl-S, a pager, a pipe nobody reads);
//! the job must then still hear its signals, so a thread of its own writes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use regatta_launch::lines::Folded;
use regatta_model::{CpuSet, hostlist};

use super::Listener;
use crate::cli::FAINT;
use crate::output;

/// How long a terminal that takes nothing is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// A longer list of nodes is not spelled out before a line.
const MOST_NAMES: usize = 40;
/// Lines that may wait for it.
const QUEUE: usize = 4096;
/// How much is written at once, in bytes.
const PIECE: usize = 64 * 1024;

enum Order {
    Line {
        error: bool,
        text: String,
    },
    /// Everything before this has been written.
    Settle(SyncSender<()>),
}

/// The terminal, and the file beside it.
pub struct Screen {
    /// The node of each rank.
    hosts: Vec<String>,
    only: Vec<u32>,
    tee: Option<File>,
    /// Why it misses lines.
    tee_cut: Option<std::io::Error>,
    orders: SyncSender<Order>,
    /// What the writer has yet to take.
    pending: Option<Order>,
    /// Since when the terminal takes nothing.
    stuck: Option<Instant>,
    dropped: u64,
    /// Who hears lines before they are shown.
    listener: Option<Listener>,
}

impl Screen {
    /// A screen that shows the lines of the ranks in `only`, or of all.
    pub fn new(only: &[u32], tee: Option<&Path>, listener: Option<Listener>) -> Result<Self> {
        let open = |path: &Path| File::create(path).with_context(|| path.display().to_string());
        let (orders, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("screen".to_owned())
            .spawn(move || carry_out(&receiver))
            .context("a thread for the terminal")?;
        Ok(Self {
            hosts: Vec::new(),
            only: only.to_vec(),
            tee: tee.map(open).transpose()?,
            tee_cut: None,
            orders,
            pending: None,
            stuck: None,
            dropped: 0,
            listener,
        })
    }

    /// Shows a line with the host and the ranks that wrote it; false if it cannot be taken yet.
    pub fn show(&mut self, line: &Folded) -> bool {
        if !self.deliver() {
            return false;
        }
        if let Some(listener) = &mut self.listener {
            (listener.hear)(&line.text);
        }
        if !self.is_shown(&line.text) {
            return true;
        }
        if !self.only.is_empty() && !line.ranks.iter().any(|r| self.only.contains(r)) {
            return true;
        }
        let who = self.who(&line.ranks);
        if let Some(tee) = &mut self.tee {
            let written = tee.write_all(format!("[{who}] {}\n", line.text).as_bytes());
            self.tee_cut = self.tee_cut.take().or(written.err());
        }
        let text = format!("{FAINT}[{who}]{FAINT:#} {}\n", line.text);
        self.pending = Some(Order::Line { error: line.error, text });
        self.deliver();
        true
    }

    /// Whether a line is for people.
    pub fn is_shown(&self, line: &str) -> bool {
        !self.listener.as_ref().is_some_and(|listener| (listener.takes)(line))
    }

    /// Whether who listens says where the run is kept.
    pub fn names_folder(&self) -> bool {
        self.listener.as_ref().is_some_and(|listener| listener.names_folder)
    }

    /// From now on the ranks are on these nodes.
    pub fn shows(&mut self, hosts: &[String]) {
        self.hosts = hosts.to_vec();
    }

    fn who(&self, ranks: &[u32]) -> String {
        let host = |rank: u32| self.hosts.get(rank as usize).map_or("?", String::as_str);
        let mut hosts: Vec<&str> = ranks.iter().map(|&r| host(r)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let whose = match hosts.as_slice() {
            [host] => (*host).to_owned(),
            many => {
                let list = hostlist::compress(many);
                if list.len() <= MOST_NAMES { list } else { format!("{} nodes", many.len()) }
            }
        };
        match ranks {
            [rank] => format!("{whose} {rank}"),
            all if all.len() == self.hosts.len() => format!("{whose} all {}", all.len()),
            some => {
                let set: CpuSet = some.iter().map(|&r| r as usize).collect();
                format!("{whose} {set}")
            }
        }
    }

    /// Waits until what was shown is written, if the terminal takes it, and says what was not.
    pub fn settle(&mut self) {
        let (done, settled) = sync_channel(1);
        self.wait();
        self.pending = Some(Order::Settle(done));
        self.wait();
        let _ = settled.recv_timeout(PATIENCE);
        if let Some(why) = self.tee_cut.take() {
            output::complain(&format!("note: the file of --tee misses lines: {why}\n"));
        }
        if self.dropped > 0 {
            let lines = regatta_model::units::count(self.dropped as usize, "line");
            output::complain(&format!(
                "note: {lines} not shown: the terminal did not take them; the logs have all\n"
            ));
            self.dropped = 0;
        }
    }

    /// Hands what is pending to the writer, if it takes it. A slow terminal holds the ranks back;
    /// one that takes nothing at all does so only for a while, and then misses lines until it moves
    /// again.
    fn deliver(&mut self) -> bool {
        let Some(order) = self.pending.take() else { return true };
        match self.orders.try_send(order) {
            Ok(()) => self.stuck = None,
            Err(TrySendError::Full(order))
                if self.stuck.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
            {
                self.pending = Some(order);
                return false;
            }
            Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) => {
                self.dropped += u64::from(matches!(lost, Order::Line { .. }));
            }
        }
        true
    }

    fn wait(&mut self) {
        while !self.deliver() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Writes lines for as long as some may come. A terminal that is gone must not end the job: the logs
/// have everything.
fn carry_out(orders: &Receiver<Order>) {
    let mut next = orders.recv().ok();
    while let Some(order) = next.take() {
        match order {
            Order::Line { error, mut text } => {
                next = gather(orders, error, &mut text);
                match error {
                    true => output::complain(&text),
                    false => drop(output::print(&text)),
                }
            }
            Order::Settle(done) => drop(done.send(())),
        }
        next = next.or_else(|| orders.recv().ok());
    }
}

/// Adds lines that wait to go where this one goes; returns what is to be done after them. One by
/// one they would cost more than the ranks take to write them.
fn gather(orders: &Receiver<Order>, error: bool, text: &mut String) -> Option<Order> {
    while text.len() < PIECE {
        match orders.try_recv().ok()? {
            Order::Line { error: also, text: line } if also == error => text.push_str(&line),
            other => return Some(other),
        }
    }
    None
}
