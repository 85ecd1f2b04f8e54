//! One of several runs. It is started with all words of the whole, and these options behind them,
//! which win: so nobody has to take a command line apart.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::args::RunArgs;

/// What a run that is made of several says to each of them.
#[derive(Debug, Args)]
pub struct PartArgs {
    /// Be one of several runs: its folder
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub part: Option<PathBuf>,
    /// What it is called
    #[arg(long, value_name = "TEXT", hide = true, requires = "part")]
    pub part_label: Option<String>,
    /// How many nodes it has, if not as many as the whole
    #[arg(long, value_name = "COUNT", hide = true, requires = "part")]
    pub part_nodes: Option<u32>,
}

/// Whether a word is one of these options: no person wrote it.
pub fn is_option(word: &str) -> bool {
    ["--part", "--trying"].iter().any(|name| word.starts_with(name))
}

/// The options of a run as they are for it, if it is one of several.
pub fn settle(args: &mut RunArgs) {
    let Some(folder) = args.part.part.take() else { return };
    args.more.sweep.clear();
    args.more.scan = false;
    args.output.out = Some(folder.join(RESULT));
    args.output.label = args.part.part_label.take();
    args.output.plot = None;
    (args.output.json, args.output.csv) = (false, false);
    args.ranks.nodes = args.part.part_nodes.or(args.ranks.nodes);
    args.ranks.run_dir = Some(folder);
}

/// The result's file in the folder.
const RESULT: &str = "bench.json";

/// One of several runs.
pub struct Part {
    pub folder: PathBuf,
    pub label: String,
    /// What is tried.
    pub environment: Vec<(String, String)>,
    /// How many nodes it has, if not as many as the whole.
    pub nodes: Option<u32>,
}

impl Part {
    /// Where its result is.
    pub fn out(&self) -> PathBuf {
        self.folder.join(RESULT)
    }

    /// The options that say so.
    pub fn words(&self) -> Vec<OsString> {
        let mut folder = OsString::from("--part=");
        folder.push(&self.folder);
        let label = format!("--part-label={}", self.label);
        let nodes = self.nodes.map(|count| format!("--part-nodes={count}"));
        let trying = self.environment.iter().map(|(name, _)| format!("--trying={name}"));
        let more = nodes.into_iter().chain(trying).map(OsString::from);
        [folder, label.into()].into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// The options of a part of a run.
    fn settled(line: &str, part: &Part) -> RunArgs {
        let words = ["regatta", "bench", "all-reduce"].into_iter().chain(line.split_whitespace());
        let words = words.map(OsString::from).chain(part.words());
        let Command::Bench(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("no benchmark");
        };
        let super::super::args::What::AllReduce(mut args) = args.what else {
            panic!("something else");
        };
        settle(&mut args);
        args
    }

    #[test]
    fn a_part_has_the_options_that_are_for_it_however_they_are_written() {
        let mut part = Part {
            folder: "-run/0".into(),
            label: "A=1 B=-x".to_owned(),
            environment: vec![("A".to_owned(), "1".to_owned()), ("B".to_owned(), "-x".to_owned())],
            nodes: None,
        };
        for out in ["-Jx", "-J=x", "-IJx", "-J x", "--out=x", "--output_file x"] {
            let line =
                format!("-b 8 {out} --label=y --nodes 4 --csv --plot p.html --sweep A=1 B=-x");
            let args = settled(&line, &part);
            assert!(!args.is_repeated() && !args.output.csv, "{line}");
            assert_eq!(args.output.out, Some(part.out()), "{line}");
            assert_eq!(
                (args.sizes.min, args.ranks.nodes, args.output.plot),
                (Some(8), Some(4), None)
            );
            assert_eq!(args.output.label.as_deref(), Some("A=1 B=-x"));
            assert_eq!(args.ranks.run_dir.as_ref(), Some(&part.folder));
            assert_eq!(args.ranks.trying, ["A", "B"]);
        }
        part.nodes = Some(2);
        let args = settled("--scan --nodes 4 --json --run-dir r", &part);
        assert!(!args.is_repeated() && !args.output.json);
        assert_eq!(args.ranks.nodes, Some(2));
    }
}
