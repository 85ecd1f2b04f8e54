//! Reads tables.

use std::str::FromStr;

use crate::table::{MAGIC, MAX_BYTES, MAX_CHANNELS, MAX_ROWS, VERSION};
use crate::{Algorithm, Choice, Communicator, Function, Protocol, Row, SizeRange, Table};

/// A table that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Problem {
    /// The file is something else.
    #[error(
        "not a tuning table: expected `{MAGIC} {VERSION}`; write one with `regatta bench all --tune FILE --backend nccl`"
    )]
    NotATable,
    /// Another version of the format.
    #[error(
        "the table has version {found:?}, this program reads version {VERSION}; measure it again, or use the plug-in of the Regatta that wrote it"
    )]
    Version { found: String },
    /// A field is missing.
    #[error(
        "{field} is missing; a row is `all-reduce ranks=16 nodes=2 bytes=65536..131071 tree ll`"
    )]
    Missing { field: &'static str },
    /// A field has another value.
    #[error("{found:?} is not {expected}")]
    Invalid { found: String, expected: &'static str },
    /// NCCL does not have it.
    #[error("NCCL has no {algorithm} algorithm with protocol {protocol} for {function}")]
    Unsupported { function: Function, algorithm: Algorithm, protocol: Protocol },
    /// NCCL does not check this number.
    #[error("channels cannot be chosen for {algorithm}, only for tree and ring")]
    NoChannels { algorithm: Algorithm },
    /// More than a row.
    #[error("unexpected {found:?} after the row")]
    Trailing { found: String },
    /// Too large.
    #[error("the table exceeds {MAX_ROWS} rows or {MAX_BYTES} bytes")]
    TooLarge,
}

impl FromStr for Table {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let at = |line: usize| move |problem: Problem| ParseError { line, problem };
        if text.len() > MAX_BYTES {
            return Err(at(1)(Problem::TooLarge));
        }
        let mut lines = (1..).zip(text.lines());
        check_head(lines.next().map_or("", |(_, line)| line)).map_err(at(1))?;
        let mut table = Self::default();
        for (number, line) in lines {
            let line = line.trim();
            match line.strip_prefix('#') {
                // The comment at the top describes the measurement.
                Some(comment) if table.rows.is_empty() => {
                    table.comments.push(comment.trim().to_owned());
                }
                None if !line.is_empty() => {
                    if table.rows.len() >= MAX_ROWS {
                        return Err(at(number)(Problem::TooLarge));
                    }
                    table.rows.push(row(line).map_err(at(number))?);
                }
                _ => {}
            }
        }
        Ok(table)
    }
}

fn check_head(line: &str) -> Result<(), Problem> {
    let mut words = line.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(MAGIC), Some(version), None) if version.parse() == Ok(VERSION) => Ok(()),
        (Some(MAGIC), Some(version), _) => Err(Problem::Version { found: shortened(version) }),
        _ => Err(Problem::NotATable),
    }
}

fn row(line: &str) -> Result<Row, Problem> {
    let mut words = line.split_whitespace();
    let mut next = |field| words.next().ok_or(Problem::Missing { field });
    let function = named(next("the collective")?, Function::from_name, FUNCTIONS)?;
    let ranks = number(next("ranks=")?, "ranks=", "ranks=COUNT")?;
    let nodes = number(next("nodes=")?, "nodes=", "nodes=COUNT, at most the number of ranks")?;
    if nodes > ranks {
        return Err(invalid(&format!("nodes={nodes}"), "at most the number of ranks"));
    }
    let sizes = size_range(next("bytes=")?)?;
    let algorithm = named(next("the algorithm")?, Algorithm::from_name, ALGORITHMS)?;
    let protocol = named(next("the protocol")?, Protocol::from_name, "ll, ll128 or simple")?;
    if !algorithm.supports(function, protocol) {
        return Err(Problem::Unsupported { function, algorithm, protocol });
    }
    let channels = words.next().map_or(Ok(0), channels)?;
    if channels > 0 && !algorithm.has_channel_choice() {
        return Err(Problem::NoChannels { algorithm });
    }
    if let Some(word) = words.next() {
        return Err(Problem::Trailing { found: shortened(word) });
    }
    let communicator = Communicator { ranks, nodes };
    Ok(Row { function, communicator, sizes, choice: Choice { algorithm, protocol, channels } })
}

const FUNCTIONS: &str = "a collective: all-reduce, all-gather, reduce-scatter, broadcast or reduce";
const ALGORITHMS: &str =
    "an algorithm: tree, ring, collnetdirect, collnetchain, nvls, nvlstree or pat";

fn named<T>(
    word: &str,
    from_name: impl Fn(&str) -> Option<T>,
    expected: &'static str,
) -> Result<T, Problem> {
    from_name(word).ok_or_else(|| invalid(word, expected))
}

/// A positive number after a prefix.
fn number(word: &str, prefix: &str, expected: &'static str) -> Result<u32, Problem> {
    let value = word.strip_prefix(prefix).and_then(|value| value.parse().ok());
    value.filter(|value| *value > 0).ok_or_else(|| invalid(word, expected))
}

fn size_range(word: &str) -> Result<SizeRange, Problem> {
    let ends = word.strip_prefix("bytes=").and_then(|ends| ends.split_once(".."));
    let range = ends.and_then(|(first, last)| {
        Some(SizeRange { first: first.parse().ok()?, last: last.parse().ok()? })
    });
    let is_range = |range: &SizeRange| range.first <= range.last;
    range.filter(is_range).ok_or_else(|| invalid(word, "bytes=FIRST..LAST"))
}

fn channels(word: &str) -> Result<u8, Problem> {
    let value = word.strip_prefix("channels=").and_then(|value| value.parse().ok());
    let valid = value.filter(|channels| *channels <= MAX_CHANNELS);
    valid.ok_or_else(|| invalid(word, "channels=COUNT, at most 64 (0: NCCL's choice)"))
}

fn invalid(found: &str, expected: &'static str) -> Problem {
    Problem::Invalid { found: shortened(found), expected }
}

/// A word of a file in a message.
fn shortened(word: &str) -> String {
    word.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "regatta-nccl-tuning 1
# 2 nodes of 8 H100, NCCL 2.28.9
# measured 2026-11-18
all-reduce ranks=16 nodes=2 bytes=65536..131071 tree ll
all-gather ranks=16 nodes=2 bytes=1..8 ring simple channels=4
";

    #[test]
    fn a_table_round_trips() {
        let table: Table = TABLE.parse().unwrap();
        assert_eq!(table.comments, ["2 nodes of 8 H100, NCCL 2.28.9", "measured 2026-11-18"]);
        assert_eq!(table.rows[1].choice.channels, 4);
        assert_eq!(table.rows[0].sizes, SizeRange { first: 65536, last: 131_071 });
        assert_eq!(table.communicators(), [Communicator { ranks: 16, nodes: 2 }]);
        assert_eq!(table.to_string(), TABLE);
    }

    #[test]
    fn spaces_comments_and_cases_do_not_matter() {
        let text = "regatta-nccl-tuning  1\r\n\n  ALL-REDUCE ranks=2 nodes=1 bytes=0..9 Ring LL128 channels=0 \n# end\n";
        let table: Table = text.parse().unwrap();
        assert_eq!(table.comments, [""; 0]);
        assert_eq!(table.rows[0].to_string(), "all-reduce ranks=2 nodes=1 bytes=0..9 ring ll128");
    }

    #[test]
    fn damage_is_reported_with_its_line() {
        let cases = [
            ("", "line 1: not a tuning table"),
            ("{}", "line 1: not a tuning table"),
            ("regatta-nccl-tuning", "line 1: not a tuning table"),
            ("regatta-nccl-tuning 2", "line 1: the table has version \"2\""),
            ("+all-reduce", "line 2: ranks= is missing"),
            ("+# c\nbarrier ranks=2", "line 3: \"barrier\" is not a collective"),
            ("+reduce ranks=0", "line 2: \"ranks=0\" is not ranks=COUNT"),
            ("+reduce ranks=2 nodes=3", "line 2: \"nodes=3\" is not at most"),
            ("+reduce ranks=2 nodes=1 bytes=9..8", "line 2: \"bytes=9..8\" is not bytes="),
            ("+reduce ranks=2 nodes=1 bytes=1..8 star", "line 2: \"star\" is not an algorithm"),
            ("+reduce ranks=2 nodes=1 bytes=1..8 ring", "line 2: the protocol is missing"),
            ("+reduce ranks=2 nodes=1 bytes=1..8 tree ll", "line 2: NCCL has no tree algorithm"),
            ("+reduce ranks=2 nodes=1 bytes=1..8 ring ll channels=65", "line 2: \"channels=65\""),
            ("+reduce ranks=2 nodes=1 bytes=1..8 ring ll channels=2 x", "line 2: unexpected \"x\""),
            (
                "+all-reduce ranks=2 nodes=1 bytes=1..8 nvls simple channels=2",
                "line 2: channels cannot be chosen for nvls",
            ),
        ];
        for (text, expected) in cases {
            let text = text.replacen('+', "regatta-nccl-tuning 1\n", 1);
            let error = text.parse::<Table>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn tables_have_a_largest_size() {
        let row = "reduce ranks=2 nodes=1 bytes=1..8 ring ll\n";
        let rows = |count| format!("{MAGIC} {VERSION}\n{}", row.repeat(count)).parse::<Table>();
        assert_eq!(rows(MAX_ROWS).unwrap().rows.len(), MAX_ROWS);
        assert_eq!(rows(MAX_ROWS + 1).unwrap_err().problem, Problem::TooLarge);
        let long = format!("{MAGIC} {VERSION}\n#{}", " ".repeat(MAX_BYTES));
        assert_eq!(long.parse::<Table>().unwrap_err().problem, Problem::TooLarge);
    }

    /// A row that tables may have.
    fn any_row() -> impl Strategy<Value = Row> {
        let choices: Vec<(Function, Algorithm, Protocol)> = Function::ALL
            .into_iter()
            .flat_map(|f| Algorithm::ALL.map(|a| (f, a)))
            .flat_map(|(f, a)| Protocol::ALL.map(|p| (f, a, p)))
            .filter(|(f, a, p)| a.supports(*f, *p))
            .collect();
        let choice = prop::sample::select(choices);
        (choice, 1u32.., 1u32.., any::<(u64, u64)>(), 0..=MAX_CHANNELS).prop_map(
            |((function, algorithm, protocol), a, b, ends, channels)| {
                let channels = if algorithm.has_channel_choice() { channels } else { 0 };
                Row {
                    function,
                    communicator: Communicator { ranks: a.max(b), nodes: a.min(b) },
                    sizes: SizeRange { first: ends.0.min(ends.1), last: ends.0.max(ends.1) },
                    choice: Choice { algorithm, protocol, channels },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn every_table_round_trips(
            comments in prop::collection::vec("[ -~]{0,20}", 0..3),
            rows in prop::collection::vec(any_row(), 0..8),
        ) {
            let comments = comments.iter().map(|comment| comment.trim().to_owned()).collect();
            let table = Table { comments, rows };
            prop_assert_eq!(table.to_string().parse::<Table>(), Ok(table));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}", words in "([a-z=.0-9]{0,10} ?\n?){0,20}") {
            for text in [&text, &words, &format!("{MAGIC} {VERSION}\n{words}")] {
                if let Ok(table) = text.parse::<Table>() {
                    prop_assert_eq!(table.to_string().parse::<Table>(), Ok(table));
                }
            }
        }

        #[test]
        fn damaged_tables_are_parsed_or_refused(at in 0..TABLE.len(), byte in 0u8..128) {
            let mut bytes = TABLE.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = String::from_utf8(bytes).unwrap().parse::<Table>();
            let _ = TABLE[..at].parse::<Table>();
        }
    }
}
