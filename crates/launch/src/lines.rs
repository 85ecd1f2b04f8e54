//! Splits the output of ranks into lines, and merges identical lines of several ranks.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Maximum length of a line in bytes. The rest of a longer one becomes the next line, so that a stream
/// without newlines cannot exhaust memory.
const MAX_LINE: usize = 64 * 1024;

/// Interval at which a line that is overwritten repeatedly, such as a progress bar, is shown.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Splits a byte stream into lines. Text that a carriage return overwrites becomes a line of its
/// own at most once per second; a terminated line shows what a terminal would leave.
#[derive(Debug, Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
    last_redraw: Option<Instant>,
}

impl LineSplitter {
    /// The lines completed by `bytes`, without their terminators.
    pub fn push(&mut self, bytes: &[u8], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|&b| b == b'\n' || b == b'\r') {
            // Only the next byte tells an overwrite from a CRLF terminator.
            if self.partial.ends_with(b"\r") && piece != b"\n" && piece != b"\r" {
                lines.extend(self.overwrite(now));
            }
            self.partial.extend_from_slice(piece);
            while self.text_len() > MAX_LINE {
                lines.push(self.split_line());
            }
            if piece.ends_with(b"\n") {
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// Length of the partial line without its terminator.
    fn text_len(&self) -> usize {
        self.partial.iter().rposition(|&b| b != b'\n' && b != b'\r').map_or(0, |at| at + 1)
    }

    /// Splits off the first [`MAX_LINE`] bytes, or a few less to keep a character whole.
    fn split_line(&mut self) -> String {
        let is_start = |at: &usize| self.partial[*at] & 0xc0 != 0x80;
        let at = (MAX_LINE - 3..=MAX_LINE).rev().find(is_start).unwrap_or(MAX_LINE);
        let rest = self.partial.split_off(at);
        let line = std::mem::replace(&mut self.partial, rest);
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Discards the line that is about to be overwritten; returns it if a redraw is due.
    fn overwrite(&mut self, now: Instant) -> Option<String> {
        let recent = |t: Instant| now.saturating_duration_since(t) < REDRAW_INTERVAL;
        let shown = self.last_redraw.is_some_and(recent);
        let text = self.finish().filter(|text| !shown && !text.is_empty())?;
        self.last_redraw = Some(now);
        Some(text)
    }

    /// The unterminated last line at the end of the stream.
    pub fn finish(&mut self) -> Option<String> {
        if self.partial.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        Some(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// A line and the ranks that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedLine {
    /// The line.
    pub text: String,
    /// Whether it came from standard error.
    pub stderr: bool,
    /// The ranks, in the order in which they wrote it.
    pub ranks: Vec<u32>,
}

impl MergedLine {
    /// A line of one rank.
    pub fn of(rank: u32, stderr: bool, text: String) -> Self {
        Self { text, stderr, ranks: vec![rank] }
    }

    /// Approximate size in memory and in a message, in bytes.
    pub fn byte_len(&self) -> usize {
        self.text.len() + 4 * self.ranks.len() + 16
    }
}

/// Delays lines by a short window and merges identical lines of several ranks. The lines of each
/// rank keep their order. A flood of output is not delayed: beyond a number of bytes the oldest lines
/// are ready at once.
#[derive(Debug)]
pub struct LineMerger {
    window: Duration,
    pending: VecDeque<(Instant, MergedLine)>,
    /// Size of `pending`.
    pending_bytes: usize,
    /// Number of lines emitted: the sequence number of a line is its index in `pending` plus this.
    emitted: usize,
    /// Sequence number of each rank's last line.
    last: HashMap<u32, usize>,
}

/// How many pending lines are searched for an identical one. Ranks that run in step write the same
/// line within a few lines; a search through all would be quadratic in a flood of output.
const LOOK_AHEAD: usize = 64;
/// Maximum size of the lines that wait, in bytes.
const MAX_PENDING_BYTES: usize = 128 * 1024;

impl LineMerger {
    /// Merges lines that arrive within `window`.
    pub fn new(window: Duration) -> Self {
        let (pending, last) = (VecDeque::new(), HashMap::new());
        Self { window, pending, pending_bytes: 0, emitted: 0, last }
    }

    /// Adds a line.
    pub fn push(&mut self, line: MergedLine, now: Instant) {
        // To keep the order, a line may only join one after the last line of each of its ranks.
        let after = |rank| self.last.get(rank).map_or(0, |&n| (n + 1).saturating_sub(self.emitted));
        let first = line.ranks.iter().map(after).max().unwrap_or(0);
        let same = |l: &MergedLine| l.stderr == line.stderr && l.text == line.text;
        let mut candidates = self.pending.iter().enumerate().skip(first).take(LOOK_AHEAD);
        let index = candidates.find(|(_, (_, l))| same(l)).map(|(index, _)| index);
        let index = index.unwrap_or(self.pending.len());
        self.last.extend(line.ranks.iter().map(|&rank| (rank, self.emitted + index)));
        match self.pending.get_mut(index) {
            Some((_, pending)) => {
                self.pending_bytes += 4 * line.ranks.len();
                pending.ranks.extend(line.ranks);
            }
            None => {
                self.pending_bytes += line.byte_len();
                self.pending.push_back((now, line));
            }
        }
    }

    /// Whether more lines wait than the maximum.
    pub fn is_full(&self) -> bool {
        self.pending_bytes > MAX_PENDING_BYTES
    }

    /// Lines whose window has passed, and those above the maximum.
    pub fn take_ready(&mut self, now: Instant) -> Vec<MergedLine> {
        self.ready_up_to(now, usize::MAX)
    }

    /// At most `max` lines of [`Self::take_ready`].
    pub fn ready_up_to(&mut self, now: Instant, max: usize) -> Vec<MergedLine> {
        let mut excess = self.pending_bytes.saturating_sub(MAX_PENDING_BYTES);
        let is_ready = |(since, line): &&(Instant, MergedLine)| {
            let due = excess > 0 || now.saturating_duration_since(*since) >= self.window;
            excess = excess.saturating_sub(line.byte_len());
            due
        };
        let count = self.pending.iter().take(max).take_while(is_ready).count();
        self.emit(count)
    }

    /// All pending lines.
    pub fn finish(&mut self) -> Vec<MergedLine> {
        self.emit(self.pending.len())
    }

    fn emit(&mut self, count: usize) -> Vec<MergedLine> {
        self.emitted += count;
        let lines: Vec<_> = self.pending.drain(..count).map(|(_, line)| line).collect();
        self.pending_bytes -= lines.iter().map(MergedLine::byte_len).sum::<usize>();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unterminated_last_line_is_kept() {
        let (mut splitter, now) = (LineSplitter::default(), Instant::now());
        assert_eq!(splitter.push(b"a\nb", now), ["a"]);
        assert_eq!(splitter.push(b"c\r\nd", now), ["bc"]);
        assert_eq!(splitter.finish().as_deref(), Some("d"));
        assert_eq!(splitter.finish(), None);
    }

    #[test]
    fn progress_bar_is_shown_once_a_second_and_at_its_end() {
        let (mut splitter, now) = (LineSplitter::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert!(splitter.push(b"\r1%", at(0)).is_empty());
        assert_eq!(splitter.push(b"\r2%", at(100)), ["1%"]);
        assert!(splitter.push(b"\r3%\r4%\r", at(200)).is_empty());
        assert_eq!(splitter.push(b"5%", at(1100)), ["4%"]);
        assert_eq!(splitter.push(b"\r100%\r", at(1200)), [""; 0]);
        assert_eq!(splitter.push(b"\nnext\r\r\n", at(1200)), ["100%", "next"]);
        assert_eq!(splitter.push(b"\n", at(1200)), [""], "empty lines are kept");
    }

    #[test]
    fn overlong_line_is_split_between_characters() {
        let text = "é".repeat(MAX_LINE) + "x";
        for len in [1000, MAX_LINE, text.len()] {
            let (mut splitter, now) = (LineSplitter::default(), Instant::now());
            let chunks = text.as_bytes().chunks(len);
            let mut lines: Vec<String> = chunks.flat_map(|c| splitter.push(c, now)).collect();
            assert!(splitter.partial.len() <= MAX_LINE);
            lines.extend(splitter.push(b"\nnext\n", now));
            assert_eq!(lines.pop().as_deref(), Some("next"));
            assert!(lines.iter().all(|line| line.len() <= MAX_LINE));
            assert_eq!(lines.concat(), text);
        }
        let mut splitter = LineSplitter::default();
        let line = "x".repeat(MAX_LINE) + "\r\n";
        assert_eq!(
            splitter.push(line.as_bytes(), Instant::now()).len(),
            1,
            "no empty line follows"
        );
    }

    fn text_and_ranks(lines: &[MergedLine]) -> Vec<(String, Vec<u32>)> {
        lines.iter().map(|l| (l.text.clone(), l.ranks.clone())).collect()
    }

    #[test]
    fn identical_lines_of_several_ranks_are_merged() {
        let now = Instant::now();
        let mut merger = LineMerger::new(Duration::from_millis(100));
        for rank in 0..3 {
            merger.push(MergedLine::of(rank, false, "hello".to_owned()), now);
            merger.push(MergedLine::of(rank, false, format!("rank {rank}")), now);
        }
        assert!(merger.take_ready(now).is_empty());
        let lines = text_and_ranks(&merger.take_ready(now + Duration::from_millis(100)));
        assert_eq!(lines[0], ("hello".to_owned(), vec![0, 1, 2]));
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn flood_of_lines_is_not_delayed() {
        let now = Instant::now();
        let mut merger = LineMerger::new(Duration::from_secs(1));
        for number in 0..1000 {
            merger.push(MergedLine::of(0, false, format!("{number:01000}")), now);
            let ready = merger.take_ready(now);
            assert!(!merger.is_full(), "line {number}");
            assert!(ready.len() <= 1, "only the excess is ready");
        }
        assert!(merger.finish().len() > 100);
        assert!(!merger.is_full() && merger.pending_bytes == 0);
    }

    #[test]
    fn repeated_line_of_one_rank_is_not_merged() {
        let now = Instant::now();
        let mut merger = LineMerger::new(Duration::ZERO);
        merger.push(MergedLine::of(0, false, "x".to_owned()), now);
        merger.push(MergedLine::of(0, false, "x".to_owned()), now);
        assert_eq!(merger.finish().len(), 2);
    }

    proptest! {
        #[test]
        fn lines_of_each_rank_keep_their_order(writes in proptest::collection::vec((0u32..4, 0u8..3), 0..60)) {
            let now = Instant::now();
            let mut merger = LineMerger::new(Duration::from_secs(3));
            let mut out = Vec::new();
            for (i, (rank, text)) in writes.iter().enumerate() {
                let later = now + Duration::from_secs(i as u64);
                merger.push(MergedLine::of(*rank, false, text.to_string()), later);
                out.extend(merger.take_ready(later));
            }
            out.extend(merger.finish());
            for rank in 0..4 {
                let wrote: Vec<String> =
                    writes.iter().filter(|(r, _)| *r == rank).map(|(_, t)| t.to_string()).collect();
                let shown: Vec<String> =
                    out.iter().filter(|l| l.ranks.contains(&rank)).map(|l| l.text.clone()).collect();
                prop_assert_eq!(wrote, shown);
            }
        }

        #[test]
        fn lines_do_not_depend_on_chunking(text in "[a-c\n]{0,60}", chunk_len in 1usize..7) {
            let (mut splitter, now) = (LineSplitter::default(), Instant::now());
            let mut lines: Vec<String> =
                text.as_bytes().chunks(chunk_len).flat_map(|c| splitter.push(c, now)).collect();
            lines.extend(splitter.finish());
            let expected: Vec<&str> = text.lines().collect();
            prop_assert_eq!(lines, expected);
        }
    }
}
