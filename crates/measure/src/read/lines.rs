//! Lines of an output without launcher labels and log messages.

#[derive(Debug, Clone, Copy)]
pub(super) struct LogLine<'a> {
    /// Line number, from 1.
    pub number: usize,
    /// Text without launcher label and trailing log message.
    pub text: &'a str,
    /// Inside a Markdown code fence.
    pub in_code_fence: bool,
    /// A code fence itself.
    pub is_fence: bool,
}

impl<'a> LogLine<'a> {
    /// White-space separated words.
    pub fn words(&self) -> std::str::SplitWhitespace<'a> {
        self.text.split_whitespace()
    }

    /// Whether the line is blank.
    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// The text after `#`, if it is a comment.
    pub fn comment(&self) -> Option<&'a str> {
        self.text.trim_start().strip_prefix('#')
    }
}

/// The lines of a text without pure log lines.
pub(super) fn lines(text: &str) -> impl Iterator<Item = LogLine<'_>> {
    let mut in_code_fence = false;
    text.lines().enumerate().filter_map(move |(index, raw)| {
        if raw.trim_start().starts_with("```") {
            in_code_fence = !in_code_fence;
            let fence = LogLine { number: 0, text: "", in_code_fence: false, is_fence: true };
            return Some(LogLine { number: index + 1, ..fence });
        }
        let text = strip_nccl_log(strip_launcher_label(raw))?;
        Some(LogLine { number: index + 1, text, in_code_fence, is_fence: false })
    })
}

/// Strips the labels of launchers: `0: ` (`srun -l`), `[1,0]<stdout>:` (Open MPI), `[0] ` (Hydra),
/// `[node1 0] ` (ours).
fn strip_launcher_label(line: &str) -> &str {
    let start = line.trim_start();
    let digits = start.trim_start_matches(|c: char| c.is_ascii_digit());
    if digits.len() < start.len()
        && let Some(rest) = digits.strip_prefix(':')
    {
        return rest.strip_prefix(' ').unwrap_or(rest);
    }
    if !start.starts_with('[') {
        return line;
    }
    for end in ["]<stdout>:", "]<stderr>:"] {
        if let Some((_, rest)) = start.split_once(end) {
            return rest;
        }
    }
    // Brackets may belong to a message; then neither a comment nor a row follows.
    let is_ours =
        |rest: &&str| rest.trim_start().starts_with(|c: char| c == '#' || c.is_ascii_digit());
    let ends = start.match_indices("] ").map(|(at, end)| &start[at + end.len()..]);
    ends.take(2).find(is_ours).unwrap_or(line)
}

/// The text before an NCCL or RCCL log message on the same line; `None` for a pure log line.
fn strip_nccl_log(line: &str) -> Option<&str> {
    let log = [" NCCL INFO ", " NCCL WARN ", " NCCL TRACE ", " NCCL VERSION "];
    let Some(at) = log.iter().filter_map(|mark| line.find(mark)).min() else { return Some(line) };
    // Host, process and thread precede it: `node1:123:456 [0] NCCL INFO`.
    let prefix = line[..at].trim_end();
    let prefix = prefix.strip_suffix(']').and_then(|h| h.rfind('[').map(|open| &prefix[..open]))?;
    let start = prefix.trim_end().rfind([' ', '\t'])? + 1;
    if prefix[..start].trim().is_empty() {
        return None;
    }
    // An interrupted row ends with a number directly followed by the host name.
    let host = &prefix[start..];
    let number = host.len() - host.trim_start_matches(|c| matches!(c, '0'..='9' | '-' | '.')).len();
    Some(&prefix[..start + number])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        lines(text).map(|line| line.text).collect()
    }

    #[test]
    fn launcher_labels_are_stripped() {
        assert_eq!(texts("0:   65536 x\n 12: # y\n3:"), ["  65536 x", "# y", ""]);
        assert_eq!(texts("[1,0]<stdout>:# a\n[x@1,0]<stdout>:b"), ["# a", "b"]);
        assert_eq!(texts("[0]   8 b\n[node[1-2] all 4] # c"), ["  8 b", "# c"]);
        assert_eq!(texts("[W socket.cpp] c"), ["[W socket.cpp] c"]);
        assert_eq!(texts("12:30:01 x"), ["30:01 x"], "a timestamp is neither a label nor a row");
        assert_eq!(texts("65536 16384"), ["65536 16384"]);
    }

    #[test]
    fn log_messages_are_stripped_also_after_a_row() {
        let log = "node1:11:22 [0] NCCL INFO Channel 00/02 : 0 1";
        assert!(texts(log).is_empty());
        let broken = format!("  1024  256  float  sum  -1 {log}");
        assert_eq!(texts(&broken), ["  1024  256  float  sum  -1 "]);
        let glued = format!("  1024  256  float  sum  -1{log}");
        assert_eq!(texts(&glued), ["  1024  256  float  sum  -1"]);
    }

    #[test]
    fn code_fences_are_tracked() {
        let lines = lines("a\n```\nb\n```\nc");
        let found: Vec<_> = lines.map(|line| (line.number, line.in_code_fence)).collect();
        assert_eq!(found, [(1, false), (2, false), (3, true), (4, false), (5, false)]);
    }
}
