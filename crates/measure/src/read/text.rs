//! A text with tables in it, and perhaps with much else.

use regatta_model::BenchResult;

use super::context::Context;
use super::lines::{Line, lines};
use super::{ReadError, nccl_tests, osu, slides};

/// The table that is being read.
enum Open<'a> {
    Nothing,
    Nccl(Box<nccl_tests::Run>),
    Osu(Box<osu::Run>),
    Cells(slides::Cells<'a>),
}

struct Reader<'a> {
    name: &'a str,
    open: Open<'a>,
    context: Context,
    results: Vec<BenchResult>,
}

/// All tables of a text.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<BenchResult>, ReadError> {
    let (open, context, results) = (Open::Nothing, Context::default(), Vec::new());
    let mut reader = Reader { name, open, context, results };
    for line in lines(text) {
        reader.line(&line)?;
    }
    reader.close()?;
    number_alike(&mut reader.results);
    Ok(reader.results)
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &Line<'a>) -> Result<(), ReadError> {
        let name = self.name;
        if line.is_fence {
            // What is quoted ends there.
            self.close()?;
        }
        let taken = match &mut self.open {
            Open::Nothing => false,
            Open::Nccl(run) => run.take(name, line)?,
            Open::Osu(run) => run.take(name, line)?,
            Open::Cells(_) if osu::begins(line) || nccl_tests::begins(line) => false,
            Open::Cells(cells) => cells.take(line),
        };
        if taken {
            if !matches!(self.open, Open::Cells(_)) {
                self.context.clear();
            }
            return Ok(());
        }
        if matches!(self.open, Open::Cells(_)) {
            // Its lines are one after another.
            self.close()?;
        }
        if osu::begins(line) {
            self.close()?;
            self.open = Open::Osu(Box::new(osu::Run::new(name, line, &self.context)));
        } else if nccl_tests::begins(line) {
            self.close()?;
            let mut run = nccl_tests::Run::new(name, line, &self.context);
            run.take(name, line)?;
            self.open = Open::Nccl(Box::new(run));
        } else if slides::begins(line) && (line.text.contains('\t') || self.is_free()) {
            self.close()?;
            self.open = Open::Cells(slides::Cells::new(line));
        } else {
            self.context.push(line);
        }
        Ok(())
    }

    /// Whether no run is being read, in whose output anything may be aligned.
    fn is_free(&self) -> bool {
        matches!(self.open, Open::Nothing)
    }

    fn close(&mut self) -> Result<(), ReadError> {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Nccl(run) => self.results.extend(run.finish(self.name)?),
            Open::Osu(run) => self.results.push(run.finish()),
            Open::Cells(cells) => {
                self.results.extend(cells.finish(self.name, &mut self.context));
            }
        }
        Ok(())
    }
}

/// Tells results apart that would have the same name.
fn number_alike(results: &mut [BenchResult]) {
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
