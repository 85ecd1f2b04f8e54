//! `regatta env`: the environment of a rank.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use regatta_model::Warning;
use regatta_place::environment::EnvLine;
use regatta_place::visible::HIDDEN_GPUS;

use crate::cli::{EnvArgs, FAINT};
use crate::plan::{Plan, STAND_IN};
use crate::shell::{quote, remark};
use crate::{output, surroundings};

/// Runs the command.
pub fn run(args: &EnvArgs) -> Result<ExitCode> {
    let plan = Plan::gather(&args.source, &args.job)?;
    let rank = args.rank.or(plan.allocation.me.map(|me| me.rank)).unwrap_or(0);
    let meet = surroundings::meet(&args.choices, &plan, rank)?;
    let lines = surroundings::of_rank(&plan, &args.choices, &meet, rank)?;
    surroundings::note_unknown(&plan, &args.choices, &meet)?;
    if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?;
    } else {
        output::print(&script(&lines, std::io::stdout().is_terminal()))?;
    }
    let of_ranks = |w: &&Warning| ["gpu-cgroup", HIDDEN_GPUS, STAND_IN].contains(&w.code.as_str());
    plan.placement.warnings.iter().filter(of_ranks).for_each(output::note);
    Ok(ExitCode::SUCCESS)
}

/// For people comments; for a shell the same as `: 'why';`, since `eval $(regatta env)` without
/// quotes joins all lines, and a comment would then swallow the rest.
fn script(lines: &[EnvLine], terminal: bool) -> String {
    let command = |l: &EnvLine| match &l.value {
        Some(value) => format!("export {}={}", l.variable, quote(value)),
        None => format!("unset {}", l.variable),
    };
    let width = lines.iter().map(|l| command(l).len()).max().unwrap_or(0).min(48);
    let line = |l: &EnvLine| match terminal {
        true => format!("{:<width$}  {FAINT}# {}{FAINT:#}\n", command(l), l.why),
        false => format!("{}; : {};\n", command(l), remark(&l.why)),
    };
    lines.iter().map(line).collect()
}
