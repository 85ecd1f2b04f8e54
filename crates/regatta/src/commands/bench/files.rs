//! Result files: read, print, compare and plot.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use regatta_measure::buffer_mode::BufferMode;
use regatta_measure::compare::{self, CompareOptions};
use regatta_measure::{labels, read as reader, write};
use regatta_model::{BenchResult, document, units};

use super::plot;
use crate::args::bench::files::{CompareArgs, FormatArgs, ReadArgs};
use crate::output;

/// Upper bound on an input file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads the results of a file.
pub fn load(path: &Path) -> Result<Vec<BenchResult>> {
    let name = path.display().to_string();
    let context = || format!("cannot read {name}");
    let mut bytes = Vec::new();
    let input: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).with_context(context)?),
    };
    input.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).with_context(context)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("{name}: file exceeds 64 MiB; extract the tables first");
    }
    check_is_text(&name, &bytes)?;
    // Logs may contain invalid UTF-8.
    Ok(reader::read(&name, &String::from_utf8_lossy(&bytes))?)
}

/// Refuses a binary file, in which a table could be recognised by chance. Terminal sequences are
/// text.
fn check_is_text(name: &str, bytes: &[u8]) -> Result<()> {
    let is_binary = |byte: &u8| matches!(byte, 0..=7 | 14..=26 | 28..=31);
    let Some(at) = bytes.iter().position(is_binary) else { return Ok(()) };
    let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    bail!(
        "{name}, line {line}: byte 0x{:02x} is not text: expected a result file or a log",
        bytes[at]
    )
}

/// Reads and selects the results of several files, each with its file.
fn load_all(paths: &[PathBuf], format: &FormatArgs) -> Result<Vec<(PathBuf, BenchResult)>> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(load(path)?.into_iter().map(|result| (path.clone(), result)));
    }
    let Some(only) = &format.only else { return Ok(all) };
    if let Some(number) = only.iter().find(|number| *number == 0 || *number > all.len()) {
        bail!("--only {number} is out of range: the results are 1 to {}", all.len());
    }
    let selected = (1..).zip(all).filter(|(number, _)| only.contains(*number));
    Ok(selected.map(|(_, found)| found).collect())
}

fn without_files(results: Vec<(PathBuf, BenchResult)>) -> Vec<BenchResult> {
    results.into_iter().map(|(_, result)| result).collect()
}

/// `regatta bench read`.
pub fn read(args: &ReadArgs) -> Result<()> {
    let results = without_files(load_all(&args.files, &args.format)?);
    draw(&args.format, &results, None)?;
    output::print(&match (args.format.json, args.format.csv, results.as_slice()) {
        (true, _, [one]) => document::to_json(one)?,
        (true, _, many) => as_list(many)?,
        (_, true, all) => write::csv(all),
        (_, _, all) => all.iter().map(shown).collect(),
    })
}

/// A list of documents.
pub fn as_list(results: &[BenchResult]) -> Result<String> {
    let document = |result| Ok(document::to_json(result)?.trim_end().to_owned());
    let all = results.iter().map(document).collect::<Result<Vec<_>>>()?;
    Ok(format!("[{}]\n", all.join(",\n")))
}

/// A result in nccl-tests' format, with its label.
fn shown(result: &BenchResult) -> String {
    let mut text = format!("# {}\n{}", result.label, write::nccl_tests(result));
    for sheet in &result.raw_tables {
        text.push_str(&format!("# {}\n", sheet.title));
        for row in &sheet.rows {
            text.push_str(&format!("{}\n", row.join("\t")));
        }
    }
    text
}

/// `regatta bench compare`.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let mut results = load_all(&args.files, &args.format)?;
    if !args.labels.is_empty() && args.labels.len() != results.len() {
        let labels = units::pluralize(args.labels.len(), "label");
        bail!("--labels has {labels} for {}", units::pluralize(results.len(), "result"));
    }
    match args.labels.is_empty() {
        true => labels::distinguish(&mut results),
        false => {
            let labelled = results.iter_mut().zip(&args.labels);
            labelled.for_each(|((_, result), label)| result.label.clone_from(label));
        }
    }
    let mut results = without_files(results);
    // Only tables can be compared.
    results.retain(|result| !result.tables.is_empty());
    let incomplete = results.iter_mut().filter(|result| !result.complete);
    incomplete.for_each(|result| result.label += " (incomplete)");
    let place = args.in_place.then_some(BufferMode::InPlace);
    draw(&args.format, &results, place)?;
    let found = compare::compare(&results, CompareOptions { metric: args.metric, place });
    output::print(&match (args.format.json, args.format.csv) {
        (true, _) => serde_json::to_string_pretty(&found)? + "\n",
        (_, true) => compare::csv(&found),
        _ => found.iter().map(|one| one.text() + "\n").collect(),
    })
}

fn draw(format: &FormatArgs, results: &[BenchResult], place: Option<BufferMode>) -> Result<()> {
    format.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, results, place))
}
