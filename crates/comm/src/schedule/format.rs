//! Human-readable programs.

use std::fmt::Write;

use super::BufferKind::{Input, Output, Scratch};
use super::{Algorithm, BlockRange, Program, ProgramStep};
use crate::CallKind;

/// One rank's program, one line per round.
pub fn format_program(program: &Program) -> String {
    let mut text = String::new();
    for (at, round) in program.rounds.iter().enumerate() {
        let steps: Vec<String> = round.iter().map(step).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "round {at}: {}", steps.join("; "));
    }
    text
}

/// The programs of all ranks side by side, one row per round: `->` sends, `<-` receives, `+=`
/// receives and reduces, `=` copies; `in`, `out` and `tmp` are input, output and scratch. Ranks do
/// not enter a round simultaneously: each continues when its own messages have completed.
pub fn format_programs(kind: CallKind, algorithm: Algorithm, programs: &[Program]) -> String {
    let blocks = programs.first().map_or(0, |p| p.blocks.count(programs.len() as u32));
    let (name, ranks) = (kind.name(), programs.len());
    let mut text = format!("{name} by {algorithm}: {ranks} ranks, blocks: {blocks}\n");
    let rounds = programs.iter().map(|program| program.rounds.len()).max().unwrap_or(0);
    let columns: Vec<Vec<Vec<String>>> = programs.iter().map(cells).collect();
    let title = |rank: usize| format!("rank {rank}");
    let width = |rank: usize| {
        let cells = columns[rank].iter().flatten().map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(title(rank).len())
    };
    let widths: Vec<usize> = (0..ranks).map(width).collect();
    line(&mut text, "round", (0..ranks).map(|rank| (title(rank), widths[rank])));
    for round in 0..rounds {
        let cells = |rank: usize| columns[rank].get(round).map_or(&[][..], Vec::as_slice);
        let height = (0..ranks).map(|rank| cells(rank).len()).max().unwrap_or(0);
        for row in 0..height {
            let label = if row == 0 { round.to_string() } else { String::new() };
            let cell = |rank: usize| cells(rank).get(row).cloned().unwrap_or_default();
            line(&mut text, &label, (0..ranks).map(|rank| (cell(rank), widths[rank])));
        }
    }
    text
}

/// The steps of each round of a program.
fn cells(program: &Program) -> Vec<Vec<String>> {
    program.rounds.iter().map(|round| round.iter().map(step).collect()).collect()
}

fn line(text: &mut String, label: &str, cells: impl Iterator<Item = (String, usize)>) {
    let mut line = format!("{label:>5}");
    for (cell, width) in cells {
        let _ = write!(line, "  {cell:width$}");
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn step(step: &ProgramStep) -> String {
    match step {
        ProgramStep::Send { to, what } => format!("{} -> r{to}", range(what)),
        ProgramStep::Receive { from, into, reduce } => {
            format!("{} {} r{from}", range(into), if *reduce { "+=" } else { "<-" })
        }
        ProgramStep::Copy { from, to } => format!("{} = {}", range(to), range(from)),
    }
}

/// Formats as `out[3]` or `in[0-4]`; an empty range is `()`.
fn range(range: &BlockRange) -> String {
    let buffer = match range.buffer {
        Input => "in",
        Output => "out",
        Scratch => "tmp",
    };
    match range.blocks.len() {
        0 => "()".to_owned(),
        1 => format!("{buffer}[{}]", range.blocks.start),
        _ => format!("{buffer}[{}-{}]", range.blocks.start, range.blocks.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::algorithm::programs;

    fn shown(kind: CallKind, by: Algorithm, ranks: u32, nodes: &[u32]) -> String {
        format_programs(kind, by, &programs(kind, by, ranks, 0, nodes).unwrap())
    }

    #[test]
    fn formats_a_ring_all_reduce() {
        let text = "\
all-reduce by ring: 3 ranks, blocks: 3
round  rank 0          rank 1          rank 2
    0  out[1] = in[1]  out[2] = in[2]  out[0] = in[0]
    1  in[2] -> r1     in[0] -> r2     in[1] -> r0
       out[1] += r2    out[2] += r0    out[0] += r1
       out[0] = in[0]  out[1] = in[1]  out[2] = in[2]
    2  out[1] -> r1    out[2] -> r2    out[0] -> r0
       out[0] += r2    out[1] += r0    out[2] += r1
    3  out[0] -> r1    out[1] -> r2    out[2] -> r0
       out[2] <- r2    out[0] <- r0    out[1] <- r1
    4  out[2] -> r1    out[0] -> r2    out[1] -> r0
       out[1] <- r2    out[2] <- r0    out[0] <- r1
";
        assert_eq!(shown(CallKind::AllReduce, Algorithm::Ring, 3, &[]), text);
    }

    #[test]
    fn formats_a_two_level_broadcast() {
        let text = "\
broadcast by two-level: 4 ranks, blocks: 1
round  rank 0        rank 1        rank 2        rank 3
    0  out[0] -> r2  out[0] <- r0  out[0] <- r0  out[0] <- r2
    1  out[0] -> r1                out[0] -> r3
";
        assert_eq!(shown(CallKind::Broadcast, Algorithm::TwoLevel, 4, &[0, 0, 1, 1]), text);
    }

    #[test]
    fn formats_a_barrier() {
        let text = "\
barrier by dissemination: 3 ranks, blocks: 0
round  rank 0    rank 1    rank 2
    0  () -> r2  () -> r0  () -> r1
       () <- r1  () <- r2  () <- r0
    1  () -> r1  () -> r2  () -> r0
       () <- r2  () <- r0  () <- r1
";
        assert_eq!(shown(CallKind::Barrier, Algorithm::Dissemination, 3, &[]), text);
    }

    #[test]
    fn formats_a_single_program() {
        let programs = programs(CallKind::Scatter, Algorithm::BinomialTree, 4, 1, &[]).unwrap();
        let text = "\
round 0: tmp[3] <- r1; tmp[0] <- r1
round 1: tmp[0] -> r0; out[3] = tmp[3]
";
        assert_eq!(format_program(&programs[3]), text);
    }
}
