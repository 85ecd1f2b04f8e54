//! The output of the ranks on the terminal, or in a pipe or file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_draw::escapes::coloured_line;
use regatta_launch::discovery::NO_SYSFS;
use regatta_launch::lines::MergedLine;
use regatta_launch::signals::is_termination_signal;
use regatta_launch::status::{JobObserver, JobStatus};
use regatta_model::hostlist;
use regatta_model::result::RunResult;
use regatta_model::units::{format_ranges, pluralize};

use super::line_writer::LineWriter;
use super::options::LaunchOptions;
use super::report;
use crate::cli::FAINT;
use crate::output::{self, Stream};

/// Time after which lines for a blocked terminal are dropped, and after a termination signal those
/// for any blocked reader.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a host list in a line's prefix, in characters.
const MAX_HOST_LIST: usize = 40;
/// Maximum size of the withheld errors, in bytes.
const MAX_WITHHELD: usize = 64 * 1024;

/// Standard output and standard error, and the file of `--tee`.
pub struct Console {
    /// Whether the ranks are of this program, whose command reports to the user itself.
    own_ranks: bool,
    /// Whether the command prints the path of the run folder at the end.
    names_run_dir: bool,
    /// Host of each rank.
    hosts: Vec<String>,
    /// Ranks to show; all if empty.
    shown_ranks: Vec<u32>,
    grace: Duration,
    tee: Option<File>,
    /// The first error in writing to `tee`.
    tee_error: Option<io::Error>,
    /// Writers of standard output and standard error.
    writers: [LineWriter; 2],
    /// A line for which the queue had no room.
    pending: Option<(Stream, String)>,
    /// Errors of regatta's own ranks, which end them. The failure report has that of the rank that failed
    /// first.
    withheld: String,
    /// Whether a termination signal was received.
    interrupted: bool,
    /// Number of lines dropped for a terminal, and for a pipe or file.
    dropped: [usize; 2],
    /// Whether the output in a pipe or file is incomplete.
    incomplete: bool,
}

impl Console {
    /// A console that shows the lines of the ranks that the options name. `names_run_dir` is whether the
    /// caller prints the path of the run folder at the end.
    pub fn new(options: &LaunchOptions, names_run_dir: bool) -> Result<Self> {
        let open = |path: &Path| {
            File::create(path)
                .with_context(|| format!("--tee {}: cannot create the file", path.display()))
        };
        Ok(Self {
            own_ranks: options.job.workload.own_ranks().is_some(),
            names_run_dir,
            hosts: Vec::new(),
            shown_ranks: options.job.shown_ranks.clone(),
            grace: options.job.grace(),
            tee: options.tee.as_deref().map(open).transpose()?,
            tee_error: None,
            writers: LineWriter::of_process().context("start a console thread")?,
            pending: None,
            withheld: String::new(),
            interrupted: false,
            dropped: [0; 2],
            incomplete: false,
        })
    }

    /// Shows a line prefixed with its hosts and ranks; returns false if the queue is full.
    fn show(&mut self, line: &MergedLine) -> bool {
        if !self.send_pending() {
            return false;
        }
        let is_shown = |rank: &&u32| self.shown_ranks.is_empty() || self.shown_ranks.contains(rank);
        let ranks: Vec<u32> = line.ranks.iter().filter(is_shown).copied().collect();
        if ranks.is_empty() {
            return true;
        }
        let prefix = self.prefix(&ranks);
        if let Some(tee) = &mut self.tee {
            let written = tee.write_all(format!("[{prefix}] {}\n", line.text).as_bytes());
            self.tee_error = self.tee_error.take().or(written.err());
        }
        let stream = if line.stderr { Stream::Stderr } else { Stream::Stdout };
        let mut text = format!("{FAINT}[{prefix}]{FAINT:#} ");
        if self.writer(stream).is_terminal() {
            text.push_str(&coloured_line(&line.text));
        } else {
            text.push_str(&line.text);
        }
        text.push('\n');
        let is_error = self.own_ranks && line.stderr && output::is_error(&line.text);
        if is_error && self.withheld.len() < MAX_WITHHELD {
            self.withheld.push_str(&text);
            return true;
        }
        self.pending = Some((stream, text));
        self.send_pending();
        true
    }

    fn writer(&mut self, stream: Stream) -> &mut LineWriter {
        &mut self.writers[stream as usize]
    }

    /// Whether the output in a pipe or file is incomplete.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
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

    fn on_ended(&mut self, result: &RunResult, folder: &Path) {
        self.report_losses(folder);
        let withheld = std::mem::take(&mut self.withheld);
        report::print_result(result, folder, self.names_run_dir, &withheld);
    }

    fn on_signal(&mut self, signal: i32, killing: bool) {
        let terminates = is_termination_signal(signal);
        self.interrupted |= terminates;
        if terminates && !self.own_ranks {
            let notice = report::signal_notice(signal, killing, self.hosts.len(), self.grace);
            self.writer(Stream::Stderr).push(&notice);
        }
    }

    /// Reports what is missing in the output.
    fn report_losses(&mut self, run_dir: &Path) {
        let rest = match (self.own_ranks, self.names_run_dir) {
            (false, _) => "; the logs are complete".to_owned(),
            // Its own text may be what is missing.
            (true, true) => format!("; run folder: {}", run_dir.display()),
            (true, false) => String::new(),
        };
        if let Some(error) = self.tee_error.take() {
            output::note(&format!("the file of --tee is incomplete: {error}"));
        }
        let dropped = std::mem::take(&mut self.dropped);
        for (count, reader) in dropped.into_iter().zip(["the terminal", "the reader"]) {
            if count > 0 {
                let (lines, cause) = (pluralize(count, "line"), format!("{reader} was blocked"));
                output::note(&format!("{lines} not shown because {cause}{rest}"));
            }
        }
        let errors: Vec<_> = self.writers.iter().filter_map(LineWriter::take_error).collect();
        for (stream, error) in &errors {
            output::error(&format!("{stream} is incomplete: {error}{rest}"));
        }
        self.incomplete |= dropped[1] > 0 || !errors.is_empty();
    }

    /// Sends the pending line; false if the queue is full. A slow reader thus applies backpressure
    /// to the ranks; lines for a terminal that stays blocked are dropped until it recovers.
    fn send_pending(&mut self) -> bool {
        let Some((stream, text)) = self.pending.take() else { return true };
        if self.writer(stream).push(&text) {
            return true;
        }
        let drop = self.may_drop(stream);
        match drop {
            true => self.on_dropped(stream, 1),
            false => self.pending = Some((stream, text)),
        }
        drop
    }

    /// Whether a stream with queued lines is blocked for too long by a terminal or, after a
    /// termination signal, by any reader.
    fn may_drop(&mut self, stream: Stream) -> bool {
        let interrupted = self.interrupted;
        let writer = self.writer(stream);
        (interrupted || writer.is_terminal()) && writer.is_blocked(STALL_TIMEOUT)
    }

    fn on_dropped(&mut self, stream: Stream, lines: usize) {
        let is_file = !self.writer(stream).is_terminal();
        self.dropped[usize::from(is_file)] += lines;
    }

    /// Whether all lines of a stream are written or, for a blocked reader, dropped.
    fn is_flushed(&mut self, stream: Stream) -> bool {
        if self.writer(stream).is_idle() {
            return true;
        }
        let drop = self.may_drop(stream);
        if drop {
            let lines = self.writer(stream).discard();
            self.on_dropped(stream, lines);
        }
        drop
    }
}

impl JobObserver for Console {
    fn on_line(&mut self, line: &MergedLine) -> bool {
        self.show(line)
    }

    fn flush(&mut self) -> bool {
        self.is_idle()
    }

    fn is_idle(&mut self) -> bool {
        self.send_pending() && self.is_flushed(Stream::Stdout) && self.is_flushed(Stream::Stderr)
    }

    fn on_status(&mut self, status: &JobStatus<'_>) {
        match status {
            JobStatus::Placed(attempt) => {
                self.hosts = attempt.hosts();
                let warnings = attempt.job.placement.warnings.iter();
                let shown = warnings.filter(|w| attempt.number == 0 && w.code == NO_SYSFS);
                shown.for_each(output::warn);
            }
            JobStatus::Started { attempt, folder } => {
                if attempt.number == 0 && !self.own_ranks {
                    output::eprint(&report::started(attempt, folder));
                }
            }
            JobStatus::Signal { signal, killing } => self.on_signal(*signal, *killing),
            JobStatus::Notice(text) => drop(self.writer(Stream::Stderr).push(text)),
            JobStatus::Ended { result, folder } => self.on_ended(result, folder),
            JobStatus::Recorded(_) => {}
            other => output::eprint(&report::status_text(other)),
        }
    }
}
