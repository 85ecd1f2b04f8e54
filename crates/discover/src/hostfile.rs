//! Host files: PBS node files (one line per slot), and the host files of Open MPI (`host slots=4`)
//! and MPICH (`host:4`).

use std::collections::HashMap;

/// A host and its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Host name.
    pub host: String,
    /// Ranks that fit on the host.
    pub slots: Option<u32>,
}

/// Parse error of a host file. Lines and columns start at 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum HostfileError {
    /// Invalid host name.
    #[error("line {line}, column {column}: invalid host name {host:?}")]
    BadHost { line: usize, column: usize, host: String },
    /// Invalid slot count.
    #[error(
        "line {line}, column {column}: invalid slot count {text:?}; write `host slots=4` or `host:4`"
    )]
    BadSlots { line: usize, column: usize, text: String },
    /// Unknown word after the host.
    #[error(
        "line {line}, column {column}: unexpected {text:?}; write one host per line, as `host` or `host slots=4`"
    )]
    Unknown { line: usize, column: usize, text: String },
}

/// Maximum slots per node; more is a typing error.
const MAX_SLOTS: u32 = 65_536;

/// Parses a host file. Blank lines and `#` comments are skipped.
pub fn parse(text: &str) -> Result<Vec<HostEntry>, HostfileError> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.zip(1..).filter_map(|(content, line)| parse_line(line, content).transpose()).collect()
}

/// The distinct hosts in order of first occurrence. The slots of a host are the number of its
/// lines, or the sum of its `slots`.
pub fn merge_hosts(lines: &[HostEntry]) -> Vec<HostEntry> {
    let mut index_of: HashMap<&str, usize> = HashMap::new();
    let mut hosts: Vec<(HostEntry, u32)> = Vec::new();
    for line in lines {
        let at = *index_of.entry(&line.host).or_insert(hosts.len());
        match hosts.get_mut(at) {
            Some((known, count)) => {
                *count += 1;
                known.slots = match (known.slots, line.slots) {
                    (Some(a), Some(b)) => Some(a.saturating_add(b)),
                    (a, b) => a.or(b),
                };
            }
            None => hosts.push((line.clone(), 1)),
        }
    }
    let with_slots = |(line, count): (HostEntry, u32)| HostEntry {
        slots: line.slots.or((count > 1).then_some(count)),
        ..line
    };
    hosts.into_iter().map(with_slots).collect()
}

fn parse_line(line: usize, content: &str) -> Result<Option<HostEntry>, HostfileError> {
    let mut words = words(content);
    let Some((column, first)) = words.next() else { return Ok(None) };
    let (host, mut slots) = match first.rsplit_once(':') {
        // More than one colon is an IPv6 address.
        Some((host, digits)) if !host.contains(':') => {
            (host, Some(parse_slots(line, column + host.len() + 1, digits)?))
        }
        _ => (first, None),
    };
    if !is_host(host) {
        return Err(HostfileError::BadHost { line, column, host: host.to_owned() });
    }
    for (column, word) in words {
        match word.split_once('=') {
            Some(("slots", digits)) => {
                slots = Some(parse_slots(line, column + "slots=".len(), digits)?);
            }
            // Other keys of Open MPI are ignored.
            Some((key, _)) if !key.is_empty() => {}
            _ => return Err(HostfileError::Unknown { line, column, text: word.to_owned() }),
        }
    }
    Ok(Some(HostEntry { host: host.to_owned(), slots }))
}

/// The words of a line with their columns.
fn words(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    content.split(|c: char| c.is_whitespace()).filter_map(move |word| {
        let column = at + 1;
        at += word.len() + 1;
        (!word.is_empty()).then_some((column, word))
    })
}

fn is_host(host: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    !host.is_empty() && host.len() <= 255 && !host.starts_with('-') && host.chars().all(is_valid)
}

fn parse_slots(line: usize, column: usize, digits: &str) -> Result<u32, HostfileError> {
    match digits.parse() {
        Ok(n) if (1..=MAX_SLOTS).contains(&n) => Ok(n),
        _ => Err(HostfileError::BadSlots { line, column, text: digits.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(String, Option<u32>)> {
        merge_hosts(&parse(text).unwrap()).into_iter().map(|n| (n.host, n.slots)).collect()
    }

    #[test]
    fn pbs_openmpi_and_mpich_forms_are_parsed() {
        assert_eq!(read("a\na\nb\nb\n"), [("a".into(), Some(2)), ("b".into(), Some(2))]);
        let mixed = "a slots=4 max-slots=8\nb:2 # x\n\n# c\n";
        assert_eq!(read(mixed), [("a".into(), Some(4)), ("b".into(), Some(2))]);
        assert_eq!(read("x3005c0s7b0n0.hsn.cm\n"), [("x3005c0s7b0n0.hsn.cm".into(), None)]);
        assert_eq!(read("fe80::1\n"), [("fe80::1".into(), None)]);
    }

    #[test]
    fn parse_errors_have_line_and_column() {
        assert_eq!(
            parse("a\nb slots=x\n").unwrap_err().to_string(),
            "line 2, column 9: invalid slot count \"x\"; write `host slots=4` or `host:4`"
        );
        assert!(matches!(parse("a b"), Err(HostfileError::Unknown { line: 1, column: 3, .. })));
        assert!(matches!(parse("\n-oProxyCommand=x"), Err(HostfileError::BadHost { line: 2, .. })));
        assert!(matches!(parse("a:0"), Err(HostfileError::BadSlots { column: 3, .. })));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[a-c0-9:=# \\nslotsé-]{0,40}") {
            if let Ok(lines) = parse(&text) {
                prop_assert!(merge_hosts(&lines).len() <= lines.len());
            }
        }
    }
}
