//! Splits a line of a log into NCCL's records: `HOST:PID:TID [DEVICE] NCCL INFO MESSAGE`, behind any
//! prefix. Processes that share a stream may write two records into one line.

use std::sync::LazyLock;

use memchr::memmem;

/// Tokens before the tag in which the header is searched for: a warning has a source location and a
/// function between device and tag.
const MAX_HEADER_TOKENS: usize = 6;

/// Level of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Info,
    Warn,
    /// Trace, ABORT and the like, which say nothing about the network.
    Other,
}

/// A record of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Rank in the prefix of a launcher: `3: ` of `srun -l`.
    pub label: Option<u32>,
    pub header: Header<'a>,
    pub level: Level,
    pub message: &'a [u8],
    /// Whether the message ends at the end of its line, and not inside another record.
    pub complete: bool,
    /// Whether the header follows directly on the bytes of another record: its host may have a prefix
    /// that is not part of it.
    pub glued: bool,
}

/// Process and device of a record. Excerpts may lack any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header<'a> {
    pub host: &'a [u8],
    pub pid: u32,
    pub device: Option<u32>,
}

/// A tag, as `NCCL INFO `, in a line.
struct Tag {
    start: usize,
    end: usize,
    level: Level,
}

/// Calls `handle` for each record of a line, which has no line break; returns whether it has any.
pub fn split<'a>(line: &'a [u8], terminated: bool, mut handle: impl FnMut(Record<'a>)) -> bool {
    let Some(mut tag) = find_tag(line, 0) else { return false };
    let (mut header_start, mut header) = parse_header(&line[..tag.start]);
    let mut label = parse_label(&line[..header_start]);
    let mut glued = false;
    loop {
        let next = find_tag(line, tag.end);
        let next_header = next.as_ref().map(|next| {
            let (start, header) = parse_header(&line[tag.end..next.start]);
            (tag.end + start, header)
        });
        let end = next_header.map_or(line.len(), |(start, _)| start);
        handle(Record {
            label,
            header,
            level: tag.level,
            message: &line[tag.end..end],
            complete: terminated && next.is_none(),
            glued,
        });
        match (next, next_header) {
            (Some(next), Some((start, found))) => {
                glued = start > 0 && !line[start - 1].is_ascii_whitespace() || has_slash(found);
                (tag, header_start, header, label) = (next, start, found, None);
            }
            _ => return true,
        }
        debug_assert!(header_start <= tag.start);
    }
}

/// A host name has no slash: the end of a transport is in front of it.
fn has_slash(header: Header<'_>) -> bool {
    header.host.contains(&b'/')
}

fn find_tag(line: &[u8], from: usize) -> Option<Tag> {
    static TAG: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new("NCCL "));
    let mut at = from;
    while let Some(found) = TAG.find(&line[at..]) {
        let start = at + found;
        let end = start + TAG.needle().len();
        let rest = &line[end..];
        let level = match rest {
            [b'I', b'N', b'F', b'O', ..] => Some((Level::Info, 4)),
            [b'W', b'A', b'R', b'N', ..] => Some((Level::Warn, 4)),
            [b'T', b'R', b'A', b'C', b'E', ..] | [b'A', b'B', b'O', b'R', b'T', ..] => {
                Some((Level::Other, 5))
            }
            _ => None,
        };
        if let Some((level, length)) = level {
            let mut end = end + length;
            end += usize::from(line.get(end) == Some(&b' '));
            return Some(Tag { start, end, level });
        }
        at = end;
    }
    None
}

/// The header at the end of the text before a tag, and where it starts.
fn parse_header(text: &[u8]) -> (usize, Header<'_>) {
    let mut header = Header::default();
    // Where the header starts if there is no process in it.
    let mut start = text.len();
    let mut end = text.len();
    for _ in 0..MAX_HEADER_TOKENS {
        let trimmed = text[..end].trim_ascii_end();
        if trimmed.is_empty() {
            break;
        }
        let token_start = trimmed.iter().rposition(|b| *b == b' ').map_or(0, |at| at + 1);
        let token = &trimmed[token_start..];
        if header.device.is_none() && token[0] == b'[' {
            header.device = token.strip_suffix(b"]").and_then(|t| parse_u32(&t[1..]));
            if header.device.is_some() {
                start = token_start;
            }
        } else if let Some((host_start, host, pid)) = parse_process(token) {
            return (token_start + host_start, Header { host, pid, ..header });
        }
        end = token_start;
    }
    (start, header)
}

/// Start of the host, host and process ID in `HOST:PID:TID`, behind a prefix such as `[1,3]<stdout>:`. A
/// time of day is no process: its host would be a number.
fn parse_process(token: &[u8]) -> Option<(usize, &[u8], u32)> {
    let (rest, tid) = rsplit_colon(token)?;
    let (host, pid) = rsplit_colon(rest)?;
    parse_u32(tid)?;
    let pid = parse_u32(pid)?;
    let is_prefix = |b: &u8| matches!(b, b':' | b'>' | b']');
    let start = host.iter().rposition(is_prefix).map_or(0, |at| at + 1);
    let host = &host[start..];
    host.iter().any(|b| !b.is_ascii_digit()).then_some((start, host, pid))
}

fn rsplit_colon(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().rposition(|b| *b == b':')?;
    Some((&text[..at], &text[at + 1..]))
}

/// The rank in a launcher's prefix: `3: ` (srun -l), `[3] ` (Hydra), `[1,3]<stdout>: ` (Open MPI),
/// `[rank3]: ` (torchrun) and `[host 3] ` (regatta launch).
fn parse_label(prefix: &[u8]) -> Option<u32> {
    let prefix = prefix.trim_ascii();
    let digits = prefix.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits > 0 && prefix.get(digits) == Some(&b':') {
        // Not the first part of a time.
        let is_time = prefix.get(digits + 1).is_some_and(u8::is_ascii_digit);
        return parse_u32(&prefix[..digits]).filter(|_| !is_time);
    }
    let inner = prefix.strip_prefix(b"[")?;
    let close = inner.iter().position(|b| *b == b']')?;
    let inner = &inner[..close];
    let last = inner.rsplit(|b| *b == b' ' || *b == b',').next().unwrap_or(inner);
    parse_u32(last.strip_prefix(b"rank").unwrap_or(last))
}

/// A decimal number that fills the text.
pub fn parse_u32(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 10 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = text.iter().fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0'));
    u32::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(line: &str) -> Vec<Record<'_>> {
        let mut found = Vec::new();
        split(line.as_bytes(), true, |record| found.push(record));
        found
    }

    fn only(line: &str) -> Record<'_> {
        let found = records(line);
        assert_eq!(found.len(), 1, "{line}");
        found[0]
    }

    #[test]
    fn prefixes_of_launchers_are_labels() {
        let record = "nid001:7:9 [2] NCCL INFO Connected all rings";
        let labels = [
            ("", None),
            ("3: ", Some(3)),
            ("  12: ", Some(12)),
            ("[1,3]<stdout>: ", Some(3)),
            ("[1,3]<stdout>:", Some(3)),
            ("[3] ", Some(3)),
            ("[rank3]: ", Some(3)),
            ("[nid001 3] ", Some(3)),
            ("nid001: ", None),
            ("2026-11-17 22:39:22 ", None),
            ("[2026-11-17 22:39:22] ", None),
            ("12:30:45 ", None),
            ("nid001.hsn.cm.example 5: ", None),
        ];
        for (prefix, label) in labels {
            let line = format!("{prefix}{record}");
            let found = only(&line);
            assert_eq!(found.label, label, "{line}");
            assert_eq!(found.header.pid, 7, "{line}");
            assert!(found.header.host.ends_with(b"nid001"), "{line}");
            assert_eq!(found.header.device, Some(2));
            assert_eq!(found.message, b"Connected all rings");
        }
    }

    #[test]
    fn warnings_have_a_location_before_the_tag() {
        let line = "[2026-11-17 22:39:22] n1:7:9 [1] src/init.cc:95 (init) NCCL WARN no network";
        let found = only(line);
        assert_eq!((found.level, found.message), (Level::Warn, b"no network".as_slice()));
        assert_eq!(found.header, Header { host: b"n1", pid: 7, device: Some(1) });
    }

    #[test]
    fn excerpts_without_a_process_are_records() {
        let found = only("[0] NCCL INFO NET/OFI Using aws-ofi-rccl 1.4.0");
        assert_eq!(found.header, Header { host: b"", pid: 0, device: Some(0) });
        let found = only("NCCL INFO Using network Socket");
        assert_eq!(found.header, Header::default());
        assert!(records("NCCL version 2.20.5+cuda12.4").is_empty());
    }

    #[test]
    fn two_records_in_a_line_are_split() {
        let line =
            "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPCb:2:2 [1] NCCL INFO x";
        let found = records(line);
        assert_eq!(found.len(), 2);
        assert!(!found[0].complete && found[1].complete);
        assert_eq!(found[1].header.pid, 2);
        assert!(found[1].glued);
    }
}
