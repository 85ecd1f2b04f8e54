//! Text around a table: its title and command, and what can be derived from them.

use std::collections::BTreeMap;

use regatta_model::Operation;
use regatta_model::bench::BenchShape;

use super::lines::LogLine;

/// Paragraphs remembered.
const MAX_PARAGRAPHS: usize = 8;
/// Maximum words of an operation's name: `all-to-all-v`.
const MAX_NAME_PARTS: usize = 4;
/// Longer lines are not titles.
const MAX_TITLE_CHARS: usize = 80;

/// The paragraphs since the last table.
#[derive(Debug, Default)]
pub(super) struct TableContext {
    paragraphs: Vec<Vec<String>>,
    in_paragraph: bool,
}

impl TableContext {
    /// Adds a line outside of tables.
    pub fn push(&mut self, line: &LogLine<'_>) {
        if line.is_blank() {
            self.in_paragraph = false;
            return;
        }
        if !self.in_paragraph {
            self.paragraphs.push(Vec::new());
            if self.paragraphs.len() > MAX_PARAGRAPHS {
                self.paragraphs.remove(0);
            }
            self.in_paragraph = true;
        }
        if let Some(paragraph) = self.paragraphs.last_mut() {
            paragraph.push(line.text.trim().to_owned());
        }
    }

    /// Forgets everything after a table.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The benchmark command and the index of its paragraph: the lines up to the program name.
    fn command(&self) -> Option<(usize, String)> {
        self.paragraphs.iter().enumerate().rev().find_map(|(index, lines)| {
            let last = lines.iter().position(|line| program(line).is_some())?;
            // A prompt starts another command.
            let first = lines[..=last].iter().rposition(|line| line.starts_with('$')).unwrap_or(0);
            // Strips prompts, quote marks and line continuations.
            let strip = |line: &String| {
                let line = line.trim_start_matches(['$', '>', ' ']);
                line.trim_end_matches([' ', '\\']).to_owned()
            };
            let words: Vec<String> = lines[first..=last].iter().map(strip).collect();
            Some((index, words.join(" ")))
        })
    }

    /// The command, if there is one.
    pub fn command_line(&self) -> Option<String> {
        self.command().map(|(_, command)| command)
    }

    /// The most likely title: the first line of the last paragraph before the command that looks
    /// like one.
    pub fn title(&self) -> Option<String> {
        let before = self.command().map_or(self.paragraphs.len(), |(index, _)| index);
        let last = self.paragraphs[..before].iter().rev().flat_map(|lines| lines.first());
        last.map(|line| line.trim_matches(['#', '*', ' '])).find(|l| is_title(l)).map(str::to_owned)
    }
}

/// Excludes prose, list items and commands.
fn is_title(line: &str) -> bool {
    line.len() <= MAX_TITLE_CHARS && line.starts_with(char::is_alphanumeric)
}

/// The program name in a command.
fn program(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        name.contains("_perf") || name.starts_with("osu_")
    })
}

/// Environment variables set by a command: `NCCL_ALGO=Tree`.
pub(super) fn settings(command: &str) -> BTreeMap<String, String> {
    let before = program(command).and_then(|p| command.find(p)).unwrap_or(command.len());
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let words = command[..before].split_whitespace().filter_map(|word| word.split_once('='));
    // Shell expansions are unknown.
    let set = words.filter(|(name, value)| is_name(name) && !value.contains(['$', '`']));
    set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Ranks and nodes started by a command.
pub(super) fn shape_of_command(command: &str) -> BenchShape {
    let Some(at) = program(command).and_then(|p| command.find(p)) else {
        return BenchShape::default();
    };
    let launcher: Vec<&str> = command[..at].split_whitespace().collect();
    let program_args: Vec<&str> = command[at..].split_whitespace().collect();
    let per_node =
        ["--ntasks-per-node", "--tasks-per-node", "-ppn", "--ppn", "-npernode", "--npernode"];
    // `-N` is ranks per node for Open MPI, and nodes for Slurm.
    let mpi = launcher.iter().any(|word| word.contains("mpirun") || word.contains("mpiexec"));
    let nodes = option(&launcher, if mpi { &[] } else { &["-N", "--nodes"] });
    let open_mpi = || option(&launcher, if mpi { &["-N"] } else { &[] });
    let each = option(&launcher, &per_node).or_else(open_mpi);
    let tasks = option(&launcher, &["-np", "--np", "-n", "--ntasks"]);
    let tasks = tasks.or_else(|| nodes?.checked_mul(each?));
    // A task may have several threads, each with several devices.
    let devices = option(&program_args, &["-g", "--ngpus"]).unwrap_or(1);
    let threads = option(&program_args, &["-t", "--nthreads"]).unwrap_or(1);
    let times = |n: u32| n.checked_mul(devices)?.checked_mul(threads);
    let ranks = tasks.and_then(times).or_else(|| launcher.is_empty().then(|| times(1)).flatten());
    let ranks_per_node = each.and_then(times);
    let exact = |ranks: u32, each: u32| ranks.checked_div(each).filter(|n| n * each == ranks);
    let nodes = nodes.or_else(|| exact(ranks?, ranks_per_node?));
    BenchShape { ranks, nodes, ranks_per_node, ..BenchShape::default() }
}

/// The value of an option, in one word or two; 0 is ignored.
fn option(words: &[&str], names: &[&str]) -> Option<u32> {
    words.iter().enumerate().find_map(|(index, word)| {
        names.iter().find_map(|name| {
            let rest = word.strip_prefix(name)?;
            let value = match rest.strip_prefix('=') {
                Some(value) => value,
                None if rest.is_empty() => words.get(index + 1)?,
                None if !name.starts_with("--") => rest,
                None => return None,
            };
            value.parse().ok().filter(|number| *number > 0)
        })
    })
}

/// Ranks and nodes in a title: `2 nodes, 16 ranks`.
pub(super) fn shape_of_title(title: &str) -> BenchShape {
    let lower = title.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).collect();
    let before = |noun: &str| {
        let found = words.windows(2).find(|pair| pair[1].starts_with(noun))?;
        if found[0] == "single" { Some(1) } else { found[0].parse().ok().filter(|n| *n > 0) }
    };
    BenchShape { ranks: before("rank"), nodes: before("node"), ..BenchShape::default() }
}

/// The operation named in a text: `all_reduce_perf`, `All_reduce`, `osu_bcast`.
pub(super) fn operation_in(text: &str) -> Option<Operation> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
    words.into_iter().find_map(|word| {
        let lower = word.to_lowercase();
        let parts: Vec<&str> = lower.split(['_', '-']).filter(|part| !part.is_empty()).collect();
        // Longest match first: all-reduce before reduce.
        (1..=MAX_NAME_PARTS)
            .rev()
            .find_map(|n| parts.windows(n).find_map(|window| by_name(&window.concat())))
    })
}

/// The operation with this name without hyphens.
fn by_name(plain: &str) -> Option<Operation> {
    // The names of those between two ranks occur in other senses.
    let ambiguous = [Operation::Latency, Operation::Bandwidth, Operation::BiBandwidth];
    let plain = if plain == "bcast" { "broadcast" } else { plain };
    let is_named = |known: &Operation| known.to_string().replace('-', "") == plain;
    Operation::KNOWN.into_iter().find(is_named).filter(|known| !ambiguous.contains(known))
}

/// The file name without directory and extension, as a label.
pub(super) fn stem(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    match file.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(text: &str) -> TableContext {
        let mut context = TableContext::default();
        super::super::lines::lines(text).for_each(|line| context.push(&line));
        context
    }

    #[test]
    fn multi_line_commands_are_joined() {
        let text = "Two nodes\n\nA=1\nNCCL_ALGO=Ring srun -n16\nx/all_reduce_perf -b 8\n(x)";
        let found = context(text);
        let command = found.command_line().unwrap();
        assert_eq!(command, "A=1 NCCL_ALGO=Ring srun -n16 x/all_reduce_perf -b 8");
        assert_eq!(found.title().as_deref(), Some("Two nodes"));
        let settings = settings(&command);
        assert_eq!(settings.get("NCCL_ALGO").map(String::as_str), Some("Ring"));
        assert_eq!(settings.len(), 2);
    }

    #[test]
    fn ranks_and_nodes_are_derived_from_commands_and_titles() {
        let cases = [
            (
                "srun -n16 -N2 --tasks-per-node=8 all_reduce_perf -b 8 -n 20 -g 1",
                [Some(16), Some(2), Some(8)],
            ),
            ("mpirun -np 2 ./all_gather_perf -g 4", [Some(8), None, None]),
            ("mpirun -np 16 -N 8 all_reduce_perf_mpi", [Some(16), Some(2), Some(8)]),
            ("./all_reduce_perf -g 8 -b 8", [Some(8), None, None]),
            ("srun --nodes=2 --ntasks-per-node=4 a_perf", [Some(8), Some(2), Some(4)]),
            ("cat file", [None, None, None]),
            ("srun -n 4000000000 a_perf -g 4000000000", [None, None, None]),
        ];
        for (command, shape) in cases {
            let found = shape_of_command(command);
            assert_eq!([found.ranks, found.nodes, found.ranks_per_node], shape, "{command}");
        }
        let titled = shape_of_title("All_reduce on 2 nodes, 16 ranks (n16N2)");
        assert_eq!((titled.ranks, titled.nodes), (Some(16), Some(2)));
        assert_eq!(shape_of_title("Single Node").nodes, Some(1));
    }

    #[test]
    fn operations_are_found_in_program_names_and_titles() {
        assert_eq!(operation_in("x/all_reduce_perf"), Some(Operation::AllReduce));
        assert_eq!(operation_in("RCCL All_reduce on 2"), Some(Operation::AllReduce));
        assert_eq!(operation_in("osu_bcast.txt"), Some(Operation::Broadcast));
        assert_eq!(operation_in("nothing here"), None);
        assert_eq!((stem("a/b.c.txt"), stem(".x"), stem("")), ("b.c", ".x", ""));
    }
}
