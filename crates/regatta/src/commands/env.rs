//! `regatta env`: prints the environment of a rank.

use std::io::IsTerminal;

use anyhow::{Result, bail};
use regatta_launch::rank_env;
use regatta_model::{Scheduler, Warning};
use regatta_place::environment::EnvVar;
use regatta_place::gpu_visibility::HIDDEN_GPUS;

use crate::cli::{EnvArgs, FAINT};
use crate::output;
use crate::shell::{quote, quote_comment};
use regatta_launch::discovery::{PlacedJob, STAND_IN};

/// What a shell evaluates if the command fails: without it `eval "$(regatta env)"` would succeed, and
/// the program would start as a world of one. It ends a script, but not an interactive shell.
const STOP_SCRIPT: &str = "case $- in *i*) false ;; *) exit 1 ;; esac;\n";

const NOT_A_RANK: &str = "this process is not a rank of the job: RANK and LOCAL_RANK are not set\n      \
     in the ranks, run it again: srun bash -c 'eval \"$(regatta env)\"; exec python train.py'";

/// Whether this process runs the command for a shell to evaluate.
pub fn is_evaluated() -> bool {
    let mut args = std::env::args_os().skip(1);
    args.next().is_some_and(|command| command == "env")
        && !args.any(|arg| arg == "--json")
        && !std::io::stdout().is_terminal()
}

/// Prints a command that ends the script which evaluates the output.
pub fn stop_script() {
    let _ = output::print(STOP_SCRIPT);
}

/// Runs the command.
pub fn run(args: &EnvArgs) -> Result<()> {
    let placed = PlacedJob::new(&args.source.source(), &args.job.request())?;
    let options = args.rank_env.options();
    let this_rank = placed.allocation.this_rank.map(|me| me.rank);
    if this_rank.is_none() && args.rank.is_none() {
        check_rank_variables(|name| rank_env::foreign_value(&placed, name)?.parse().ok())?;
    }
    let rank = args.rank.or(this_rank).unwrap_or(0);
    let rendezvous = rank_env::rendezvous(&options, &placed, rank)?;
    let mut notes = Vec::new();
    let mut lines = match args.rank.is_none() && this_rank.is_none() && is_job_script(&placed) {
        true => {
            output::note(NOT_A_RANK);
            rank_env::job_env(&placed, &options, &rendezvous, &mut notes)?
        }
        false => rank_env::rank_env(&placed, &options, &rendezvous, rank, &mut notes)?,
    };
    if args.rank.is_none() {
        rank_env::check_identity(&placed, &lines)?;
    }
    notes.extend(rank_env::secure_cache_dir(&placed, rank, &mut lines));
    notes.extend(rank_env::notes_of_unset_names(&placed, &options, &rendezvous)?);
    notes.iter().for_each(|note| output::note(note));
    let to_text = || script(&lines, std::io::stdout().is_terminal());
    output::print_report(args.json, || output::json_lines(&lines), to_text)?;
    if this_rank.is_none() {
        let note = rank_env::note_of_single_node(&placed, &options);
        note.iter().for_each(|note| output::note(note));
    }
    let relevant = ["gpu-cgroup", HIDDEN_GPUS, STAND_IN];
    let affects_ranks = |w: &&Warning| relevant.contains(&w.code.as_str());
    placed.placement.warnings.iter().filter(affects_ranks).for_each(output::warn);
    Ok(())
}

/// Whether this process is a job's script, which starts the ranks but is none of them. The only rank
/// of a job may be the script itself.
fn is_job_script(placed: &PlacedJob) -> bool {
    placed.allocation.scheduler != Scheduler::None && placed.placement.ranks > 1
}

/// Checks that the ranks and sizes of the environment do not contradict each other. A launcher's own
/// variables are checked where they are read.
fn check_rank_variables(variable: impl Fn(&str) -> Option<u32>) -> Result<()> {
    for [name, size_name] in [["RANK", "WORLD_SIZE"], ["LOCAL_RANK", "LOCAL_WORLD_SIZE"]] {
        let (Some(rank), Some(size)) = (variable(name), variable(size_name)) else { continue };
        if rank >= size {
            bail!(
                "{name}={rank} and {size_name}={size} contradict each other: the rank must be less \
                 than the size; unset both, or select a rank with --rank"
            );
        }
    }
    Ok(())
}

/// `export` lines with the reasons as comments on a terminal, and as `: "why";` otherwise: unquoted
/// `eval $(regatta env)` joins all lines, and a comment would swallow the rest.
fn script(lines: &[EnvVar], terminal: bool) -> String {
    let command = |l: &EnvVar| match &l.value {
        Some(value) => format!("export {}={}", l.variable, quote(value)),
        None => format!("unset {}", l.variable),
    };
    let width = lines.iter().map(|l| command(l).len()).max().unwrap_or(0).min(48);
    let line = |l: &EnvVar| match terminal {
        true => format!("{:<width$}  {FAINT}# {}{FAINT:#}\n", command(l), l.why),
        false => format!("{}; : {};\n", command(l), quote_comment(&l.why)),
    };
    lines.iter().map(line).collect()
}
