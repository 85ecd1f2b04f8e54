//! Output of the OSU micro-benchmarks: point-to-point, collective and one-sided.

use regatta_model::bench::{BenchProgram, BenchShape};
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, Operation};

use super::context::{self, TableContext};
use super::lines::LogLine;
use super::{LineError, parse_metric};

/// Parser of one run.
#[derive(Debug)]
pub(super) struct OsuParser {
    result: BenchResult,
    table: BenchTable,
    columns: Vec<String>,
}

pub(super) fn starts_run(line: &LogLine<'_>) -> bool {
    line.text.trim_start().starts_with("# OSU ")
}

impl OsuParser {
    /// A run that starts with this line.
    pub fn new(name: &str, line: &LogLine<'_>, context: &TableContext) -> Self {
        let title = line.comment().unwrap_or_default().trim();
        let versioned = title.rsplit_once(" v");
        let (title, version) = versioned.map_or((title, None), |(title, v)| (title, Some(v)));
        let operation = operation(title);
        let command = context.command_line();
        let mut result = BenchResult {
            program: BenchProgram::Osu,
            label: context::stem(name).to_owned(),
            settings: command.as_deref().map(context::settings).unwrap_or_default(),
            shape: command.as_deref().map(context::shape_of_command).unwrap_or_default(),
            command,
            backend: title.split(' ').nth(1).map(str::to_lowercase),
            notes: vec![line.text.trim().to_owned()],
            complete: true,
            ..BenchResult::default()
        };
        let version = version.map(|version| ("osu".to_owned(), version.to_owned()));
        result.versions.extend(version);
        if is_point_to_point(&operation) {
            result.shape = BenchShape { ranks: Some(2), ..result.shape };
        }
        let table = BenchTable { operation, ..BenchTable::default() };
        Self { result, table, columns: Vec::new() }
    }

    /// Adds a line; `false` if it does not belong to this run.
    pub fn push_line(&mut self, line: &LogLine<'_>) -> Result<bool, LineError> {
        if let Some(comment) = line.comment() {
            if starts_run(line) {
                return Ok(false);
            }
            match columns(comment) {
                Some(columns) if self.table.rows.is_empty() => self.columns = columns,
                _ => self.comment(comment.trim()),
            }
            return Ok(true);
        }
        let words: Vec<&str> = line.words().collect();
        let is_row = words.first().is_some_and(|word| matches!(parse_metric(word), Ok(Some(_))));
        if !is_row || self.columns.is_empty() {
            return Ok(false);
        }
        self.row(&words, line).map(|()| true)
    }

    fn comment(&mut self, text: &str) {
        match text.strip_prefix("Datatype:") {
            Some(dtype) => self.table.dtype = Some(dtype.trim().trim_end_matches('.').to_owned()),
            None if !text.is_empty() => self.result.notes.push(format!("# {text}")),
            None => {}
        }
    }

    fn row(&mut self, words: &[&str], line: &LogLine<'_>) -> Result<(), LineError> {
        if words.len() > self.columns.len() {
            let expected = format!("a row of {} columns", self.columns.len());
            return Err(LineError::new(line.number, &expected, line.text.trim()));
        }
        let (mut row, mut measured) = (BenchRow::default(), Measurement::default());
        for (column, word) in self.columns.iter().zip(words) {
            let mismatch = |expected: &str| LineError::new(line.number, expected, word);
            match column.as_str() {
                "Size" => row.size_bytes = word.parse().map_err(|_| mismatch("a size in bytes"))?,
                "Validation" => measured.wrong = validation_errors(word).map_err(mismatch)?,
                name => set_metric(name, word, &mut measured).map_err(mismatch)?,
            }
        }
        row.out_of_place = Some(measured);
        row.line = Some(line.text.to_owned());
        self.table.rows.push(row);
        Ok(())
    }

    pub fn finish(mut self) -> BenchResult {
        self.result.tables.push(self.table);
        self.result
    }
}

/// Always between two ranks.
fn is_point_to_point(operation: &Operation) -> bool {
    matches!(operation, Operation::Latency | Operation::Bandwidth | Operation::BiBandwidth)
}

/// The operation named in a title.
fn operation(title: &str) -> Operation {
    let name = title.strip_prefix("OSU ").unwrap_or(title);
    let name = name.strip_suffix(" Test").unwrap_or(name);
    // Strips the library, possibly with the device runtime: `MPI-CUDA`. Function names are kept.
    let plain = match name.split_once(' ') {
        Some((first, rest)) if !first.contains('_') => rest,
        _ => name,
    };
    match plain.to_lowercase().as_str() {
        "latency" => Operation::Latency,
        "bandwidth" => Operation::Bandwidth,
        "bi-directional bandwidth" => Operation::BiBandwidth,
        "all-to-all personalized exchange latency" => Operation::AllToAll,
        "all-to-allv personalized exchange latency" => Operation::AllToAllV,
        lower => {
            let one = lower.strip_suffix(" latency").filter(|name| !name.contains(' '));
            let other = || Operation::Other(lower.replace([' ', '_'], "-").replace("-/-", "-"));
            one.and_then(context::operation_in).unwrap_or_else(other)
        }
    }
}

/// The columns of a header comment; `None` for other comments.
fn columns(header: &str) -> Option<Vec<String>> {
    const NAMES: &str = "Size,Latency (us),Latency(us),Avg Latency(us),Avg Lat(us),Min Latency(us),\
                         Min Lat(us),Max Latency(us),Max Lat(us),Iterations,Bandwidth (MB/s),MB/s,\
                         Messages/s,Validation,Transmit Size,Overall(us),Compute(us),\
                         Coll. Init(us),MPI_Test(us),MPI_Wait(us),Pure Comm.(us),Min Comm.(us),\
                         Max Comm.(us),Overlap(%)";
    let (mut rest, mut found) = (header.trim_start(), Vec::new());
    while !rest.is_empty() {
        let name = NAMES.split(',').find(|name| rest.starts_with(*name)).map(str::len);
        let name = name.or_else(|| percentile(rest));
        // Unknown columns end at two spaces.
        let end = name.unwrap_or_else(|| rest.find("  ").unwrap_or(rest.len()));
        if name.is_none() && found.is_empty() {
            return None;
        }
        found.push(rest[..end].trim_end().to_owned());
        rest = rest[end..].trim_start();
    }
    (!found.is_empty()).then_some(found)
}

/// Length of a name such as `P99 Tail Lat(us)`, which may be followed by a single space.
fn percentile(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('P')?.trim_start_matches(|c: char| c.is_ascii_digit());
    digits.strip_prefix(" Tail ").and_then(|_| text.find(')')).map(|end| end + 1)
}

/// `Pass` or `Fail`: OSU does not print the number of errors.
fn validation_errors(word: &str) -> Result<Option<u64>, &'static str> {
    match word {
        "Pass" => Ok(Some(0)),
        "Fail" => Ok(Some(1)),
        "-" => Ok(None),
        _ => Err("Pass or Fail"),
    }
}

fn set_metric(name: &str, word: &str, measured: &mut Measurement) -> Result<(), &'static str> {
    let value = parse_metric(word).map_err(|()| "a number")?;
    let (ranks, calls) = (&mut measured.rank_stats, &mut measured.call_stats);
    match name {
        "Latency (us)" | "Latency(us)" | "Avg Latency(us)" | "Avg Lat(us)" | "Overall(us)" => {
            measured.time_us = value;
        }
        "Min Latency(us)" | "Min Lat(us)" => ranks.get_or_insert_default().min_us = value,
        "Max Latency(us)" | "Max Lat(us)" => ranks.get_or_insert_default().max_us = value,
        "P50 Tail Lat(us)" => calls.get_or_insert_default().p50_us = value,
        "P90 Tail Lat(us)" => calls.get_or_insert_default().p90_us = value,
        "P95 Tail Lat(us)" => calls.get_or_insert_default().p95_us = value,
        "P99 Tail Lat(us)" => calls.get_or_insert_default().p99_us = value,
        "Iterations" => measured.iterations = value.map(|value| value as u64),
        // Scaled in decimal, so that the value is the nearest to what was printed.
        "Bandwidth (MB/s)" | "MB/s" => measured.algbw = mb_to_gb(word),
        _ => measured.other.extend(value.map(|value| (name.to_owned(), value))),
    }
    Ok(())
}

fn mb_to_gb(word: &str) -> Option<f64> {
    let value = format!("{word}e-3").parse::<f64>().or_else(|_| word.parse().map(|v: f64| v / 1e3));
    value.ok().filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_the_operation() {
        let other = |name: &str| Operation::Other(name.to_owned());
        let cases = [
            ("MPI Latency", Operation::Latency),
            ("MPI-CUDA Bi-Directional Bandwidth", Operation::BiBandwidth),
            ("MPI Broadcast Latency", Operation::Broadcast),
            ("MPI Reduce_scatter Latency", Operation::ReduceScatter),
            ("NCCL Allreduce Latency", Operation::AllReduce),
            ("MPI All-to-All Personalized Exchange Latency", Operation::AllToAll),
            ("MPI Multiple Bandwidth / Message Rate", other("multiple-bandwidth-message-rate")),
            ("MPI Non-blocking Allreduce Latency", other("non-blocking-allreduce-latency")),
            ("MPI_Put Latency", other("mpi-put-latency")),
        ];
        for (title, expected) in cases {
            assert_eq!(operation(&format!("OSU {title} Test")), expected, "{title}");
        }
    }

    #[test]
    fn headers_are_split_into_columns() {
        let full = " Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations";
        assert_eq!(columns(full).unwrap().len(), 5);
        assert_eq!(columns(" Size Bandwidth (MB/s)").unwrap(), ["Size", "Bandwidth (MB/s)"]);
        let new = " Size    Latency (us)   Strange Thing   Validation";
        assert_eq!(columns(new).unwrap()[2], "Strange Thing");
        let tails = " Size  Bandwidth (MB/s) P50 Tail BW(MB/s) P99 Tail BW(MB/s)        Validation";
        assert_eq!(columns(tails).unwrap()[3], "P99 Tail BW(MB/s)");
        assert_eq!(columns(" Datatype: MPI_CHAR."), None);
        assert_eq!(columns(" Avg Latency(us)").unwrap(), ["Avg Latency(us)"]);
    }
}
