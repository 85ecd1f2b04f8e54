//! Lines of an output as the program wrote them: without what launchers and logs add.

/// One line.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogLine<'a> {
    /// Its number in the file, from 1.
    pub number: usize,
    /// Its text, without a launcher's label and what a log wrote behind it.
    pub text: &'a str,
    /// Whether it is between two lines of three backticks.
    pub in_code_fence: bool,
    /// Whether it is such a line.
    pub is_fence: bool,
}

impl<'a> LogLine<'a> {
    /// Its words.
    pub fn words(&self) -> std::str::SplitWhitespace<'a> {
        self.text.split_whitespace()
    }

    /// Whether there is nothing on it.
    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// What follows the sign of a comment, if it is one.
    pub fn comment(&self) -> Option<&'a str> {
        self.text.trim_start().strip_prefix('#')
    }
}

/// The lines of a text; those that are nothing but a log are left out.
pub(super) fn lines(text: &str) -> impl Iterator<Item = LogLine<'_>> {
    let mut in_code_fence = false;
    text.lines().enumerate().filter_map(move |(index, raw)| {
        if raw.trim_start().starts_with("```") {
            in_code_fence = !in_code_fence;
            return Some(LogLine {
                number: index + 1,
                text: "",
                in_code_fence: false,
                is_fence: true,
            });
        }
        let text = strip_nccl_log(strip_launcher_label(raw))?;
        Some(LogLine { number: index + 1, text, in_code_fence, is_fence: false })
    })
}

/// Takes off what launchers put before a rank's lines: `0: ` of `srun -l`, `[1,0]<stdout>:` of
/// Open MPI, `[0] ` of Hydra, `[node1 0] ` of ours.
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
    // What is in brackets may be a message's own: then neither a comment nor a row follows.
    let is_ours =
        |rest: &&str| rest.trim_start().starts_with(|c: char| c == '#' || c.is_ascii_digit());
    let ends = start.match_indices("] ").map(|(at, end)| &start[at + end.len()..]);
    ends.take(2).find(is_ours).unwrap_or(line)
}

/// What stands before a log of NCCL or RCCL on the same line; `None` if the line is all log.
fn strip_nccl_log(line: &str) -> Option<&str> {
    let log = [" NCCL INFO ", " NCCL WARN ", " NCCL TRACE ", " NCCL VERSION "];
    let Some(at) = log.iter().filter_map(|mark| line.find(mark)).min() else { return Some(line) };
    // The host, process and thread before it: `node1:123:456 [0] NCCL INFO`.
    let head = line[..at].trim_end();
    let head = head.strip_suffix(']').and_then(|h| h.rfind('[').map(|open| &head[..open]))?;
    let start = head.trim_end().rfind([' ', '\t'])? + 1;
    if head[..start].trim().is_empty() {
        return None;
    }
    // A row that the log broke into ends with a number, and the host's name follows at once.
    let host = &head[start..];
    let number = host.len() - host.trim_start_matches(|c| matches!(c, '0'..='9' | '-' | '.')).len();
    Some(&head[..start + number])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        lines(text).map(|line| line.text).collect()
    }

    #[test]
    fn labels_of_launchers_are_taken_off() {
        assert_eq!(texts("0:   65536 x\n 12: # y\n3:"), ["  65536 x", "# y", ""]);
        assert_eq!(texts("[1,0]<stdout>:# a\n[x@1,0]<stdout>:b"), ["# a", "b"]);
        assert_eq!(texts("[0]   8 b\n[node[1-2] all 4] # c"), ["  8 b", "# c"]);
        assert_eq!(texts("[W socket.cpp] c"), ["[W socket.cpp] c"]);
        assert_eq!(texts("12:30:01 x"), ["30:01 x"], "a time is no label, and no row either");
        assert_eq!(texts("65536 16384"), ["65536 16384"]);
    }

    #[test]
    fn logs_are_left_out_also_behind_a_row() {
        let log = "node1:11:22 [0] NCCL INFO Channel 00/02 : 0 1";
        assert!(texts(log).is_empty());
        let broken = format!("  1024  256  float  sum  -1 {log}");
        assert_eq!(texts(&broken), ["  1024  256  float  sum  -1 "]);
        let glued = format!("  1024  256  float  sum  -1{log}");
        assert_eq!(texts(&glued), ["  1024  256  float  sum  -1"]);
    }

    #[test]
    fn what_is_between_backticks_is_known() {
        let found: Vec<_> =
            lines("a\n```\nb\n```\nc").map(|l| (l.number, l.in_code_fence)).collect();
        assert_eq!(found, [(1, false), (2, false), (3, true), (4, false), (5, false)]);
    }
}
