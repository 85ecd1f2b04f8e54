//! One child run of a sweep or scan. It gets the parent's whole command line followed by these
//! hidden options, which override it, so that the command line need not be taken apart.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use regatta_model::Operation;
use regatta_model::run_folder::BENCH_RESULT;

use super::args::CollectiveArgs;

/// Hidden options of a child run.
#[derive(Debug, Default, Clone, Args)]
pub struct ChildArgs {
    /// Run as a child of a sweep or scan, with this run folder
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub child_dir: Option<PathBuf>,
    /// Label of the child run
    #[arg(long, value_name = "TEXT", hide = true, requires = "child_dir")]
    pub child_label: Option<String>,
    /// Number of nodes of the child run, if not that of the parent
    #[arg(long, value_name = "COUNT", hide = true, requires = "child_dir")]
    pub child_nodes: Option<u32>,
}

/// Whether an argument is one of the hidden options.
pub fn is_hidden_option(arg: &str) -> bool {
    ["--child-", "--sweep-var", "--only-operation"].iter().any(|prefix| arg.starts_with(prefix))
}

/// Applies the options of a child run to its arguments.
pub fn apply(args: &mut CollectiveArgs) {
    let Some(folder) = args.child.child_dir.take() else { return };
    args.mode.sweep.clear();
    args.mode.scan = false;
    args.mode.tune = None;
    args.output.out = None;
    args.output.label = args.child.child_label.take();
    args.table.plot = None;
    (args.output.json, args.output.csv) = (false, false);
    args.ranks.nodes = args.child.child_nodes.or(args.ranks.nodes);
    args.ranks.run_dir = Some(folder);
}

/// One run of a sweep or scan.
pub struct ChildRun {
    pub folder: PathBuf,
    pub label: String,
    /// Swept environment variables.
    pub environment: Vec<(String, String)>,
    /// Number of nodes, if not that of the parent.
    pub nodes: Option<u32>,
    /// Operations, if not those of the parent.
    pub operations: Vec<Operation>,
}

impl ChildRun {
    /// Path of its result.
    pub fn out(&self) -> PathBuf {
        self.folder.join(BENCH_RESULT)
    }

    /// The hidden options to append to the command line.
    pub fn hidden_options(&self) -> Vec<OsString> {
        let mut folder = OsString::from("--child-dir=");
        folder.push(&self.folder);
        let label = format!("--child-label={}", self.label);
        let nodes = self.nodes.map(|count| format!("--child-nodes={count}"));
        let swept = self.environment.iter().map(|(name, _)| format!("--sweep-var={name}"));
        let only = self.operations.iter().map(|name| format!("--only-operation={name}"));
        let more = nodes.into_iter().chain(swept).chain(only).map(OsString::from);
        [folder, label.into()].into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::args::{BenchCommand, tests::parse_bench};

    /// The arguments of a child run after [`apply`].
    fn applied(line: &str, child: &ChildRun) -> CollectiveArgs {
        let words = ["all-reduce"].into_iter().chain(line.split_whitespace()).map(OsString::from);
        match parse_bench(words.chain(child.hidden_options())).unwrap() {
            BenchCommand::AllReduce(mut args) => {
                apply(&mut args);
                args
            }
            other => panic!("not an all-reduce: {other:?}"),
        }
    }

    #[test]
    fn child_options_override_the_command_line() {
        let mut child = ChildRun {
            folder: "-run/0".into(),
            label: "A=1 B=-x".to_owned(),
            environment: vec![("A".to_owned(), "1".to_owned()), ("B".to_owned(), "-x".to_owned())],
            nodes: None,
            operations: Vec::new(),
        };
        for out in ["-Jx", "-J=x", "-IJx", "-J x", "--out=x", "--output_file x"] {
            let line =
                format!("-b 8 {out} --label=y --nodes 4 --csv --plot p.svg --sweep A=1 B=-x");
            let args = applied(&line, &child);
            assert!(!args.is_multi_run() && !args.output.csv, "{line}");
            assert_eq!(args.output.out, None, "the default, {}: {line}", BENCH_RESULT);
            assert_eq!((args.sizes.min, args.ranks.nodes), (Some(8), Some(4)));
            assert_eq!(args.table.plot, None);
            assert_eq!(args.output.label.as_deref(), Some("A=1 B=-x"));
            assert_eq!(args.ranks.run_dir.as_ref(), Some(&child.folder));
            assert_eq!(args.ranks.sweep_var, ["A", "B"]);
        }
        let args = applied("--tune x --tune-rounds 3 --backend nccl", &child);
        assert!(!args.is_multi_run() && args.mode.tune.is_none());
        child.nodes = Some(2);
        let args = applied("--scan --nodes 4 --json --run-dir r", &child);
        assert!(!args.is_multi_run() && !args.output.json);
        assert_eq!(args.ranks.nodes, Some(2));
    }
}
