//! Columns and rows of nccl-tests and rccl-tests output, in all versions.

use regatta_model::{BenchRow, BenchTable, Measurement};

use super::super::{LineError, parse_metric};
use crate::buffer_mode::BufferMode;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    Size,
    Count,
    Type,
    Redop,
    Root,
    Metric(BufferMode, MetricColumn),
    /// One word of a timestamp.
    Timestamp,
    /// An unknown column, by name.
    Other(BufferMode, String),
}

/// A column that occurs out of place and in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricColumn {
    Time,
    Algbw,
    Busbw,
    Wrong,
    Error,
    Min,
    Max,
    P99,
    Cv,
}

/// Columns of a table, from its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnLayout(Vec<Column>);

/// A row and its table, without other rows.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ParsedRow {
    pub key: BenchTable,
    pub row: BenchRow,
}

/// An unmeasured value.
const NOT_AVAILABLE: &str = "N/A";
/// Written by our own writer for absent values.
pub(crate) const ABSENT: &str = "-";

/// Header words that group columns.
const GROUP_HEADERS: [&str; 4] = ["out-of-place", "in-place", "(+", "per-iteration)"];

impl ColumnLayout {
    /// Parses the header line; `None` if it is none. `first` is the mode of the first time column;
    /// some versions print only one mode.
    ///
    /// Tables copied from slides split the header over several lines; then the standard columns are
    /// assumed.
    pub fn from_header(header: &str, first: BufferMode) -> Option<Self> {
        let is_unit = |name: &str| name.starts_with('(') && name.ends_with(')');
        let is_name = |name: &&str| !GROUP_HEADERS.contains(name) && !is_unit(name);
        let names: Vec<&str> = header.split_whitespace().filter(is_name).collect();
        if !names.starts_with(&["size", "count"]) {
            return None;
        }
        let mut columns: Vec<Column> =
            names.iter().map_while(|name| leading_column(name)).collect();
        let metrics = &names[columns.len()..];
        if is_incomplete(metrics) {
            columns.extend(standard_metrics());
            return Some(Self(columns));
        }
        let mut place = None;
        for name in metrics {
            let metric = metric_column(name);
            if metric == Some(MetricColumn::Time) {
                place = Some(if place.is_none() { first } else { BufferMode::InPlace });
            }
            let place = place.unwrap_or(first);
            match (metric, *name) {
                (Some(metric), _) => columns.push(Column::Metric(place, metric)),
                (None, "timestamp") => columns.extend([Column::Timestamp, Column::Timestamp]),
                (None, other) => columns.push(Column::Other(place, other.to_owned())),
            }
        }
        Some(Self(columns))
    }

    /// The columns of every version since 2.13.
    pub fn standard() -> Self {
        let leading = [Column::Size, Column::Count, Column::Type, Column::Redop, Column::Root];
        Self(leading.into_iter().chain(standard_metrics()).collect())
    }

    /// Words of a complete row.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a line is a row: it starts like one, or has a size and the right number of words.
    pub fn is_row(&self, words: &[&str]) -> bool {
        let sized = words.first().is_some_and(|word| word.parse::<u64>().is_ok());
        self.starts_row(words) || (sized && words.len() == self.len())
    }

    /// Whether a line starts like a row.
    pub fn starts_row(&self, words: &[&str]) -> bool {
        let is_leading = |column: &&Column| !matches!(column, Column::Metric(..));
        let leading: Vec<&Column> = self.0.iter().take_while(is_leading).collect();
        let fits = |(column, word): (&&Column, &&str)| match column {
            Column::Size => word.parse::<u64>().is_ok(),
            Column::Count => *word == ABSENT || word.parse::<u64>().is_ok(),
            Column::Root => *word == ABSENT || word.parse::<i64>().is_ok(),
            _ => *word == ABSENT || word.starts_with(|c: char| c.is_ascii_alphabetic()),
        };
        words.len() >= leading.len().min(3) && leading.iter().zip(words).all(fits)
    }

    /// Whether the words may continue an interrupted row.
    pub fn continues_row(words: &[&str]) -> bool {
        !words.is_empty()
            && words.iter().all(|word| parse_metric(word).is_ok() || *word == NOT_AVAILABLE)
    }

    /// Whether the row has in-place values only, with a gap instead of the out-of-place columns.
    pub fn is_in_place_only(&self, line: &str, words: &[&str]) -> bool {
        let metrics = |place| move |c: &&Column| matches!(c, Column::Metric(p, _) if *p == place);
        let out = self.0.iter().filter(metrics(BufferMode::OutOfPlace)).count();
        out > 0 && words.len() + out == self.len() && line.contains(&" ".repeat(30))
    }

    /// Parses a row; missing trailing columns stay absent.
    pub fn row(
        &self,
        words: &[&str],
        in_place_only: bool,
        line: usize,
    ) -> Result<ParsedRow, LineError> {
        let is_out = |c: &Column| matches!(c, Column::Metric(BufferMode::OutOfPlace, _));
        let columns = self.0.iter().filter(|column| !(in_place_only && is_out(column)));
        let mut row = ParsedRow::default();
        for (column, word) in columns.zip(words) {
            column.set(word, &mut row, line)?;
        }
        Ok(row)
    }
}

/// Columns before the metrics.
fn leading_column(name: &str) -> Option<Column> {
    Some(match name {
        "size" => Column::Size,
        "count" => Column::Count,
        "type" => Column::Type,
        "redop" => Column::Redop,
        "root" => Column::Root,
        _ => return None,
    })
}

fn metric_column(name: &str) -> Option<MetricColumn> {
    Some(match name {
        "time" | "cputime" => MetricColumn::Time,
        "algbw" => MetricColumn::Algbw,
        "busbw" => MetricColumn::Busbw,
        "#wrong" => MetricColumn::Wrong,
        "error" => MetricColumn::Error,
        "i_min" => MetricColumn::Min,
        "i_max" => MetricColumn::Max,
        "i_p99" => MetricColumn::P99,
        "i_cv%" | "i_cv" => MetricColumn::Cv,
        _ => return None,
    })
}

/// Whether the header lacks columns that every table has.
fn is_incomplete(metrics: &[&str]) -> bool {
    !metrics.starts_with(&["time", "algbw", "busbw"])
        && !metrics.starts_with(&["cputime", "algbw", "busbw"])
}

fn standard_metrics() -> impl Iterator<Item = Column> {
    use MetricColumn::{Algbw, Busbw, Time, Wrong};
    let of = |place| [Time, Algbw, Busbw, Wrong].map(|metric| Column::Metric(place, metric));
    BufferMode::ALL.into_iter().flat_map(of)
}

impl Column {
    fn set(&self, word: &str, row: &mut ParsedRow, line: usize) -> Result<(), LineError> {
        let mismatch = |expected: &str| LineError::new(line, expected, word);
        let ParsedRow { key: BenchTable { dtype, redop, root, .. }, row } = row;
        match self {
            Self::Size => row.size_bytes = word.parse().map_err(|_| mismatch("a size in bytes"))?,
            Self::Count | Self::Type | Self::Redop | Self::Root if word == ABSENT => {}
            Self::Count => {
                row.count = Some(word.parse().map_err(|_| mismatch("a count of elements"))?);
            }
            Self::Type => *dtype = Some(word.to_owned()),
            Self::Redop => *redop = Some(word.to_owned()),
            Self::Root => *root = Some(word.parse().map_err(|_| mismatch("a root rank"))?),
            Self::Metric(place, metric) => {
                metric.set(word, place.measurement_mut(row)).map_err(mismatch)?;
            }
            Self::Other(place, name) => {
                let value = parse_metric(word).map_err(|()| mismatch("a number"))?;
                let value = value.map(|value| (name.clone(), value));
                place.measurement_mut(row).other.extend(value);
            }
            Self::Timestamp => {}
        }
        Ok(())
    }
}

impl MetricColumn {
    fn set(self, word: &str, measured: &mut Measurement) -> Result<(), &'static str> {
        if word == NOT_AVAILABLE {
            return Ok(());
        }
        // nccl-tests marks out-of-bounds values with `*`.
        let word = if self == Self::Wrong { word.trim_end_matches('*') } else { word };
        let value = parse_metric(word).map_err(|()| self.name())?;
        // Absent values do not create statistics.
        if value.is_none() {
            return Ok(());
        }
        let stats = &mut measured.call_stats;
        match self {
            Self::Time => measured.time_us = value,
            Self::Algbw => measured.algbw = value,
            Self::Busbw => measured.busbw = value,
            Self::Wrong => measured.wrong = value.map(|value| value as u64),
            Self::Error => measured.error = value,
            Self::Min => stats.get_or_insert_default().min_us = value,
            Self::Max => stats.get_or_insert_default().max_us = value,
            Self::P99 => stats.get_or_insert_default().p99_us = value,
            Self::Cv => stats.get_or_insert_default().cv_percent = value,
        }
        Ok(())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Time | Self::Min | Self::Max | Self::P99 => "a time in microseconds",
            Self::Algbw => "an algorithm bandwidth in GB/s",
            Self::Busbw => "a bus bandwidth in GB/s",
            Self::Wrong => "a number of wrong elements or N/A",
            Self::Error => "a deviation or N/A",
            Self::Cv => "a coefficient of variation in percent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "      size         count      type   redop    root     time   algbw   busbw  \
                       #wrong     time   algbw   busbw  #wrong ";

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn headers_of_all_versions_are_parsed() {
        let out = |header: &str| ColumnLayout::from_header(header, BufferMode::OutOfPlace);
        let split = "\tsize (B)\tcount (elements)\ttype\tredop\troot\ttime (us)\tout-of-place\t";
        for standard in [NOW, split] {
            assert_eq!(out(standard), Some(ColumnLayout::standard()), "{standard}");
        }
        let cases = [
            (
                "  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error",
                12,
            ),
            ("  size  count  type  time  algbw  busbw  error  time  algbw  busbw  error", 11),
            ("size count type redop root time algbw busbw time algbw busbw", 11),
            (&format!("{NOW}          timestamp"), 15),
        ];
        for (header, columns) in cases {
            assert_eq!(out(header).unwrap().len(), columns, "{header}");
        }
        assert_eq!(out("  (B)  (elements)"), None);
    }

    #[test]
    fn complete_and_partial_rows_are_parsed() {
        let parse = |line: &str| ColumnLayout::standard().row(&words(line), false, 1).unwrap();
        let found = parse("1024 256 float sum -1 10.5 0.10 0.15 0 N/A nan inf N/A");
        let out = found.row.out_of_place.unwrap();
        assert_eq!((out.time_us, out.busbw, out.wrong), (Some(10.5), Some(0.15), Some(0)));
        assert_eq!(found.key.root, Some(-1));
        assert_eq!(parse("1024 256 float sum -1 10.5").row.in_place, None);
    }

    #[test]
    fn mismatches_are_reported_with_the_expected_column() {
        for found in ["ten", "-3", "infinity"] {
            let line = format!("1024 256 float sum -1 {found}");
            let error = ColumnLayout::standard().row(&words(&line), false, 7).unwrap_err();
            assert_eq!(error, LineError::new(7, "a time in microseconds", found));
        }
    }

    #[test]
    fn rows_with_in_place_values_only_are_parsed() {
        let line = format!("1024 256 float sum -1{}10.5 0.10 0.15 0", " ".repeat(32));
        let standard = ColumnLayout::standard();
        assert!(standard.is_in_place_only(&line, &words(&line)));
        let found = standard.row(&words(&line), true, 1).unwrap();
        assert_eq!((found.row.out_of_place, found.row.in_place.unwrap().wrong), (None, Some(0)));
    }
}
