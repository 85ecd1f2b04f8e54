//! Files with host names: PBS's node file (one line a slot), and the host files of Open MPI
//! (`host slots=4`) and MPICH (`host:4`).

/// A line of a node file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLine {
    /// The host.
    pub host: String,
    /// The ranks it says the host takes.
    pub slots: Option<u32>,
}

/// Why a text is no node file. Lines and columns count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodefileError {
    /// A host name with a character no host name has.
    #[error("line {line}, column {column}: {host:?} is no host name")]
    BadHost {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
        /// What stands there.
        host: String,
    },
    /// A number of slots that is none.
    #[error(
        "line {line}, column {column}: {text:?} is no number of slots; write `host slots=4` or `host:4`"
    )]
    BadSlots {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
        /// What stands there.
        text: String,
    },
    /// A word after the host that is no `key=value`.
    #[error(
        "line {line}, column {column}: {text:?} is unknown; write one host a line, as `host` or `host slots=4`"
    )]
    Unknown {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
        /// What stands there.
        text: String,
    },
}

/// More slots than any node takes: a typing error.
const MAX_SLOTS: u32 = 65_536;

/// Reads a node file. Blank lines and what follows a `#` are passed over.
pub fn parse(text: &str) -> Result<Vec<NodeLine>, NodefileError> {
    let mut lines = Vec::new();
    for (i, whole) in text.lines().enumerate() {
        let content = whole.split('#').next().unwrap_or_default();
        lines.extend(parse_line(i + 1, content)?);
    }
    Ok(lines)
}

/// The hosts in the order of their first line, each with its slots: the number of its lines, or
/// what a line says.
pub fn hosts(lines: &[NodeLine]) -> Vec<NodeLine> {
    let mut place: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
    let mut hosts: Vec<(NodeLine, u32)> = Vec::new();
    for line in lines {
        let at = *place.entry(&line.host).or_insert(hosts.len());
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
    let told = |(line, count): (NodeLine, u32)| NodeLine {
        slots: line.slots.or((count > 1).then_some(count)),
        ..line
    };
    hosts.into_iter().map(told).collect()
}

fn parse_line(line: usize, content: &str) -> Result<Option<NodeLine>, NodefileError> {
    let mut words = words(content);
    let Some((column, first)) = words.next() else { return Ok(None) };
    let (host, mut slots) = match first.rsplit_once(':') {
        // More than one colon is an IPv6 address, not `host:slots`.
        Some((host, digits)) if !host.contains(':') => {
            (host, Some(number(line, column + host.len() + 1, digits)?))
        }
        _ => (first, None),
    };
    if !is_host(host) {
        return Err(NodefileError::BadHost { line, column, host: host.to_owned() });
    }
    for (column, word) in words {
        match word.split_once('=') {
            Some(("slots", digits)) => {
                slots = Some(number(line, column + "slots=".len(), digits)?);
            }
            // Open MPI's other keys do not concern us.
            Some((key, _)) if !key.is_empty() => {}
            _ => return Err(NodefileError::Unknown { line, column, text: word.to_owned() }),
        }
    }
    Ok(Some(NodeLine { host: host.to_owned(), slots }))
}

/// The words of a line with their columns, counted from 1.
fn words(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    content.split(|c: char| c.is_whitespace()).filter_map(move |word| {
        let column = at + 1;
        at += word.len() + 1;
        (!word.is_empty()).then_some((column, word))
    })
}

fn is_host(host: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    !host.is_empty() && host.len() <= 255 && !host.starts_with('-') && host.chars().all(good)
}

fn number(line: usize, column: usize, digits: &str) -> Result<u32, NodefileError> {
    match digits.parse() {
        Ok(n) if (1..=MAX_SLOTS).contains(&n) => Ok(n),
        _ => Err(NodefileError::BadSlots { line, column, text: digits.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(String, Option<u32>)> {
        hosts(&parse(text).unwrap()).into_iter().map(|n| (n.host, n.slots)).collect()
    }

    #[test]
    fn all_three_forms() {
        assert_eq!(read("a\na\nb\nb\n"), [("a".into(), Some(2)), ("b".into(), Some(2))]);
        assert_eq!(
            read("a slots=4 max-slots=8\nb:2 # x\n\n# c\n"),
            [("a".into(), Some(4)), ("b".into(), Some(2))]
        );
        assert_eq!(read("x3005c0s7b0n0.hsn.cm\n"), [("x3005c0s7b0n0.hsn.cm".into(), None)]);
        assert_eq!(read("fe80::1\n"), [("fe80::1".into(), None)]);
    }

    #[test]
    fn faults_have_a_place() {
        assert_eq!(
            parse("a\nb slots=x\n").unwrap_err().to_string(),
            "line 2, column 9: \"x\" is no number of slots; write `host slots=4` or `host:4`"
        );
        assert!(matches!(parse("a b"), Err(NodefileError::Unknown { line: 1, column: 3, .. })));
        assert!(matches!(parse("\n-oProxyCommand=x"), Err(NodefileError::BadHost { line: 2, .. })));
        assert!(matches!(parse("a:0"), Err(NodefileError::BadSlots { column: 3, .. })));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-c0-9:=# \\nslotsé-]{0,40}") {
            if let Ok(lines) = parse(&text) {
                prop_assert!(hosts(&lines).len() <= lines.len());
            }
        }
    }
}
