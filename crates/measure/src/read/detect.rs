//! Finds tables of all known formats in a text.

use regatta_model::BenchResult;

use super::context::TableContext;
use super::lines::{LogLine, lines};
use super::{LineError, Result, nccl_tests, osu, tabular};

/// The table being parsed.
enum ActiveParser<'a> {
    Idle,
    Nccl(Box<nccl_tests::NcclTestsParser>),
    Osu(Box<osu::OsuParser>),
    Tabular(tabular::TabularBlock<'a>),
}

struct TextReader<'a> {
    name: &'a str,
    active: ActiveParser<'a>,
    context: TableContext,
    results: Vec<BenchResult>,
}

/// Parses all tables of a text.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<BenchResult>> {
    let (active, context, results) = (ActiveParser::Idle, TableContext::default(), Vec::new());
    let mut reader = TextReader { name, active, context, results };
    let parsed = lines(text).try_for_each(|line| reader.line(&line));
    parsed.and_then(|()| reader.close()).map_err(|error| error.in_file(name))?;
    number_duplicate_labels(&mut reader.results);
    Ok(reader.results)
}

impl<'a> TextReader<'a> {
    fn line(&mut self, line: &LogLine<'a>) -> Result<(), LineError> {
        let name = self.name;
        if line.is_fence {
            // A code fence ends the current table.
            self.close()?;
        }
        let consumed = match &mut self.active {
            ActiveParser::Idle => false,
            ActiveParser::Nccl(run) => run.push_line(line)?,
            ActiveParser::Osu(run) => run.push_line(line)?,
            ActiveParser::Tabular(cells) => {
                !osu::starts_run(line) && !nccl_tests::starts_run(line) && cells.push_line(line)
            }
        };
        if consumed {
            if !matches!(self.active, ActiveParser::Tabular(_)) {
                self.context.clear();
            }
            return Ok(());
        }
        if matches!(self.active, ActiveParser::Tabular(_)) {
            // Tabular blocks are contiguous.
            self.close()?;
        }
        if osu::starts_run(line) {
            self.close()?;
            let run = osu::OsuParser::new(name, line, &self.context);
            self.active = ActiveParser::Osu(Box::new(run));
        } else if nccl_tests::starts_run(line) {
            self.close()?;
            let mut run = nccl_tests::NcclTestsParser::new(name, line, &self.context);
            run.push_line(line)?;
            self.active = ActiveParser::Nccl(Box::new(run));
        } else if tabular::starts_table(line)
            // The output of a run may contain aligned text.
            && (line.text.contains('\t') || matches!(self.active, ActiveParser::Idle))
        {
            self.close()?;
            self.active = ActiveParser::Tabular(tabular::TabularBlock::new(line));
        } else {
            self.context.push(line);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), LineError> {
        match std::mem::replace(&mut self.active, ActiveParser::Idle) {
            ActiveParser::Idle => {}
            ActiveParser::Nccl(run) => self.results.extend(run.finish()?),
            ActiveParser::Osu(run) => self.results.push(run.finish()),
            ActiveParser::Tabular(cells) => {
                self.results.extend(cells.finish(self.name, &mut self.context));
            }
        }
        Ok(())
    }
}

/// Numbers results with equal labels.
fn number_duplicate_labels(results: &mut [BenchResult]) {
    for at in 1..results.len() {
        let (before, rest) = results.split_at_mut(at);
        let label = rest[0].label.clone();
        let numbered = format!("{label} #");
        let same = |other: &&BenchResult| {
            let number = other.label.strip_prefix(&numbered);
            other.label == label || number.is_some_and(|n| n.parse::<usize>().is_ok())
        };
        let alike = before.iter().filter(same).count();
        if alike > 0 {
            rest[0].label = format!("{numbered}{}", alike + 1);
        }
    }
}
