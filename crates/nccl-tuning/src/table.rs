//! The table: rows by communicator, collective and size. Written as text; [`crate::parse`] reads it.

use std::fmt;

use crate::{Algorithm, Function, Protocol};

/// The first word of a table.
pub const MAGIC: &str = "regatta-nccl-tuning";
/// The version of the format, after [`MAGIC`].
pub const VERSION: u32 = 1;
/// The largest table in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The largest number of rows.
pub const MAX_ROWS: usize = 8192;
/// NCCL's largest number of channels.
pub const MAX_CHANNELS: u8 = 64;

/// The size of a communicator, as NCCL counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Communicator {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of nodes.
    pub nodes: u32,
}

impl fmt::Display for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ranks={} nodes={}", self.ranks, self.nodes)
    }
}

/// Message sizes, both ends included: bytes of a rank's largest buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    /// The smallest size.
    pub first: u64,
    /// The largest size.
    pub last: u64,
}

impl SizeRange {
    /// Whether a size is in the range.
    pub fn contains(self, bytes: u64) -> bool {
        (self.first..=self.last).contains(&bytes)
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.last)
    }
}

/// What is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// The number of channels; 0: NCCL's choice.
    pub channels: u8,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm, self.protocol)?;
        match self.channels {
            0 => Ok(()),
            channels => write!(f, " channels={channels}"),
        }
    }
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The collective.
    pub function: Function,
    /// The communicators that the row is for.
    pub communicator: Communicator,
    /// The sizes that the row is for.
    pub sizes: SizeRange,
    /// What is chosen.
    pub choice: Choice,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, communicator, sizes, choice } = self;
        write!(f, "{function} {communicator} bytes={sizes} {choice}")
    }
}

/// A table. Of the rows for a call, the first whose choice is available applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// What is known of the measurement: the lines of the comment at the top.
    pub comments: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// The sizes of communicators that the table has rows for.
    pub fn communicators(&self) -> Vec<Communicator> {
        let mut found: Vec<_> = self.rows.iter().map(|row| row.communicator).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Replaces the rows of collectives on a communicator, and what is said of their measurement: the
    /// comments that begin with the communicator and the collectives.
    pub fn replace(
        &mut self,
        communicator: Communicator,
        functions: &[Function],
        rows: Vec<Row>,
        description: &str,
    ) {
        let is_replaced =
            |row: &Row| row.communicator == communicator && functions.contains(&row.function);
        self.rows.retain(|row| !is_replaced(row));
        self.rows.extend(rows);
        let names: Vec<&str> = functions.iter().map(|function| function.name()).collect();
        let others = |comment: &String| without(comment, communicator, &names);
        self.comments = self.comments.iter().filter_map(others).collect();
        self.comments.push(format!("{communicator} {}: {description}", names.join(",")));
    }

    /// Distinguishes tables in logs: all ranks must use the same one. Comments do not count.
    pub fn digest(&self) -> u64 {
        // FNV-1a: the same in every build of the plug-in.
        let text = self.rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, hash)
    }
}

/// The comment of a measurement without the collectives that were measured again; `None` if there are no others.
fn without(comment: &str, communicator: Communicator, names: &[&str]) -> Option<String> {
    let head = format!("{communicator} ");
    let Some((measured, rest)) = comment.strip_prefix(&head).and_then(|text| text.split_once(':'))
    else {
        return Some(comment.to_owned());
    };
    let others: Vec<&str> = measured.split(',').filter(|name| !names.contains(name)).collect();
    (!others.is_empty()).then(|| format!("{head}{}:{rest}", others.join(",")))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{MAGIC} {VERSION}")?;
        // A line break would end the comment.
        let lines = self.comments.iter().flat_map(|comment| comment.split('\n'));
        lines.map(str::trim).try_for_each(|line| writeln!(f, "# {line}"))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_measured_collectives_are_replaced() {
        let text = "regatta-nccl-tuning 1
# by hand
# ranks=2 nodes=1 all-reduce,reduce: old
# ranks=2 nodes=1 all-reduce: older
all-reduce ranks=2 nodes=1 bytes=1..8 tree ll
all-reduce ranks=2 nodes=2 bytes=1..8 tree ll
reduce ranks=2 nodes=1 bytes=1..8 ring ll
";
        let mut table: Table = text.parse().unwrap();
        let digest = table.digest();
        let communicator = Communicator { ranks: 2, nodes: 1 };
        let row = Row { sizes: SizeRange { first: 3, last: 4 }, ..table.rows[0] };
        table.replace(communicator, &[Function::AllReduce], vec![row], "new");
        let expected = "regatta-nccl-tuning 1
# by hand
# ranks=2 nodes=1 reduce: old
# ranks=2 nodes=1 all-reduce: new
all-reduce ranks=2 nodes=2 bytes=1..8 tree ll
reduce ranks=2 nodes=1 bytes=1..8 ring ll
all-reduce ranks=2 nodes=1 bytes=3..4 tree ll
";
        assert_eq!(table.to_string(), expected);
        assert_ne!(table.digest(), digest);
    }
}
