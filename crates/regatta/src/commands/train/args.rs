//! The command line of `regatta train`.

use std::path::PathBuf;

use clap::Args;

/// `regatta train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// A preset (--presets lists them) or a TOML file; without it the preset tiny
    pub config: Option<String>,
    /// Keys that go over it, as in steps=100 or optimizer.rate=3e-4 (--keys lists them)
    #[arg(value_name = "KEY=VALUE")]
    pub keys_over: Vec<String>,

    /// See in under a minute whether training on all ranks works here, and how long each part takes
    #[arg(long, conflicts_with = "resume", help_heading = "What to do")]
    pub smoke: bool,
    /// Go on with the run in this folder, with its configuration
    #[arg(
        long,
        value_name = "RUN_FOLDER",
        conflicts_with = "run_dir",
        help_heading = "What to do"
    )]
    pub resume: Option<PathBuf>,
    /// List every key with its default and what it is for
    #[arg(long, conflicts_with_all = ["presets", "print_config"], help_heading = "What to do")]
    pub keys: bool,
    /// List the presets
    #[arg(long, conflicts_with = "print_config", help_heading = "What to do")]
    pub presets: bool,
    /// Print the whole configuration as TOML, each line with who set it, and train nothing
    #[arg(long, help_heading = "What to do")]
    pub print_config: bool,

    /// Print what each rank would hold and send, and a pipeline's schedule, and train nothing
    ///
    /// With -n for so many ranks, without it for as many as the splits in parallel.* ask for; with
    /// --ranks-per-node it says which of them would share a host. All figures are expected ones, in
    /// bytes: parameters, gradients, optimizer state, activations, and what a rank must send in a step
    /// on each axis, however it gets there. A split that does not fit is refused with the nearest that
    /// does.
    #[arg(
        long,
        conflicts_with_all = ["smoke", "keys", "presets", "print_config"],
        help_heading = "What to do"
    )]
    pub explain: bool,
    /// With --explain: then train three steps, and say what each rank held and sent beside what was
    /// expected
    ///
    /// On the ranks that a training would have. Nothing is kept but the run's folder with its logs.
    #[arg(long, requires = "explain", conflicts_with = "resume", help_heading = "What to do")]
    pub measure: bool,

    /// Print what happens as JSON lines, and nothing else; with --smoke or --explain one
    /// object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// The run's folder; without it a new one below runs/
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub run_dir: Option<PathBuf>,

    #[command(flatten)]
    pub ranks: RankArgs,
}

/// Who trains: local ranks, or those of an allocation.
#[derive(Debug, Args)]
#[command(next_help_heading = "Ranks (without `regatta launch`)")]
pub struct RankArgs {
    /// Ranks in all; without it as many as `regatta map` plans
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Ranks on each node
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: Option<u32>,
    /// Use this many nodes of the allocation, or of --hostfile
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// Take the nodes from FILE, not from the scheduler
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// More options for `regatta launch`, as in '--spares 1 --max-restarts 5'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub launch: Option<String>,
    /// Tell what happens to the process that started this one, not to a person
    #[arg(long, hide = true)]
    pub events: bool,
}

impl TrainArgs {
    /// The words that make the configuration, in the order in which they were typed.
    pub fn words(&self) -> Vec<&str> {
        self.config.iter().chain(&self.keys_over).map(String::as_str).collect()
    }
}

/// What `regatta train --help` teaches.
pub const EXAMPLES: &str = "\
Examples:
  regatta train                                 a small GPT on a text that comes with Regatta
  regatta train shakespeare-char                a preset: Shakespeare, in nanoGPT's sizes
  regatta train steps=200 width=256             the default with other values: KEY=VALUE
  regatta train my.toml optimizer.rate=3e-4     a file, and one key over it
  regatta train gpt2 -n 4 --print-config        what would be trained, and who set what
  regatta train --resume runs/20261115-120000-4711
                                                go on where a run was stopped
  regatta train llama-7b -n 8 tp=2 pp=2 zero=1 --explain
                                                what each rank would hold and send
  regatta train -n 2 parallel.zero=3 --explain --measure
                                                and what they do hold and send, in three steps
  regatta train --smoke                         does training on all ranks work here?
  salloc -N 2 regatta train gpt2                on the nodes of an allocation
  regatta launch -n 4 -- regatta train tiny     as any other command of ranks
  regatta train --json | jq .step.loss          for programs: events as JSON lines";
