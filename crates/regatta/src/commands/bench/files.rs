//! Results in files: read, printed, compared, drawn.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regatta_measure::compare::{self, Choice};
use regatta_measure::figure::Figure;
use regatta_measure::place::Place;
use regatta_measure::{read as reader, write};
use regatta_model::{BenchResult, document};

use super::args::{CompareArgs, FigureName, FormArgs, ReadArgs};
use super::plot;
use crate::output;

/// No output of a benchmark is longer.
const LONGEST: u64 = 64 << 20;

/// The results of a file.
pub fn load(path: &Path) -> Result<Vec<BenchResult>> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    match path == Path::new("-") {
        true => std::io::stdin().take(LONGEST + 1).read_to_end(&mut bytes),
        false => {
            std::fs::File::open(path).and_then(|f| f.take(LONGEST + 1).read_to_end(&mut bytes))
        }
    }
    .with_context(|| name.clone())?;
    if bytes.len() as u64 > LONGEST {
        bail!("{name}: longer than any output of a benchmark; cut out the tables first");
    }
    // What a terminal or a driver wrote between the lines need not be text.
    Ok(reader::read(&name, &String::from_utf8_lossy(&bytes))?)
}

/// The results of files that are asked for.
fn load_all(paths: &[PathBuf], form: &FormArgs) -> Result<Vec<BenchResult>> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(load(path)?);
    }
    let Some(only) = &form.only else { return Ok(all) };
    if let Some(number) = only.iter().find(|number| *number == 0 || *number > all.len()) {
        bail!("--only {number}, but the results are 1 to {}", all.len());
    }
    let numbered = (1..).zip(all);
    Ok(numbered.filter(|(number, _)| only.contains(*number)).map(|(_, result)| result).collect())
}

/// `regatta bench read`.
pub fn read(args: &ReadArgs) -> Result<ExitCode> {
    let results = load_all(&args.files, &args.form)?;
    draw(&args.form, &results)?;
    let text = match (args.form.json, args.form.csv) {
        (true, _) => as_json(&results)?,
        (_, true) => write::csv(&results),
        _ => results.iter().map(shown).collect(),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// One document, or a list of them.
fn as_json(results: &[BenchResult]) -> Result<String> {
    match results {
        [one] => Ok(document::to_json(one)?),
        many => as_list(many),
    }
}

/// A list of documents.
pub fn as_list(results: &[BenchResult]) -> Result<String> {
    let all: Result<Vec<String>, _> = results.iter().map(document::to_json).collect();
    let all: Vec<String> = all?.iter().map(|one| one.trim_end().to_owned()).collect();
    Ok(format!("[{}]\n", all.join(",\n")))
}

/// A result as people know it, with its name.
fn shown(result: &BenchResult) -> String {
    let mut text = format!("# {}\n{}", result.label, write::nccl_tests(result));
    for sheet in &result.sheets {
        text.push_str(&format!("# {}\n", sheet.title));
        for row in &sheet.rows {
            text.push_str(&format!("{}\n", row.join("\t")));
        }
    }
    text
}

/// `regatta bench compare`.
pub fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let mut results = load_all(&args.files, &args.form)?;
    if !args.labels.is_empty() && args.labels.len() != results.len() {
        bail!("--labels has {} names, and these are {} results", args.labels.len(), results.len());
    }
    for (result, label) in results.iter_mut().zip(&args.labels) {
        result.label.clone_from(label);
    }
    // Tables of other things have nothing to compare.
    results.retain(|result| !result.tables.is_empty());
    draw(&args.form, &results)?;
    let figure = args.figure.map(|figure| match figure {
        FigureName::Busbw => Figure::BusBandwidth,
        FigureName::Algbw => Figure::AlgorithmBandwidth,
        FigureName::Time => Figure::Time,
    });
    let place = args.in_place.then_some(Place::InPlace);
    let found = compare::compare(&results, Choice { figure, place });
    let text = match (args.form.json, args.form.csv) {
        (true, _) => serde_json::to_string_pretty(&found)? + "\n",
        (_, true) => compare::csv(&found),
        _ => found.iter().map(|one| one.text() + "\n").collect(),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn draw(form: &FormArgs, results: &[BenchResult]) -> Result<()> {
    form.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, results))
}
