//! `--dry-run`: what would be launched.

use std::path::Path;

use anyhow::Result;
use regatta_launch::agent_launcher::command::LaunchCommand;
use regatta_launch::attempt::AttemptSpec;
use regatta_launch::config::JobConfig;
use regatta_launch::discovery::Discovery;
use regatta_launch::driver::{self, Job};
use regatta_launch::launch_target::{AgentCommands, described_step_options};
use regatta_model::MemoryPolicy;
use regatta_model::run_folder::{BOOTSTRAP, PLACEHOLDER};
use regatta_place::launcher_options::RequiredOption;

use crate::cli::{FAINT, HEADING};
use crate::output;
use crate::shell::{quote, quote_words};

/// Prints the commands that would start agents, and each rank's command, binding and environment.
pub fn print(mut job: Job<'_>, discovery: Discovery) -> Result<()> {
    let agents = match discovery.machines[0].is_live() {
        true if discovery.needs_agents() => agent_commands(job.config, &discovery)?,
        true => String::new(),
        false => describe_options(&described_step_options(job.config, &discovery)?),
    };
    let attempt = driver::dry_run(&mut job, discovery)?;
    attempt.notes.iter().for_each(|note| output::note(note));
    attempt.job.placement.warnings.iter().for_each(output::warn);
    output::print(&format!("{agents}{}", describe(&attempt)))
}

/// The commands that would start the agents.
fn agent_commands(config: &JobConfig, discovery: &Discovery) -> Result<String> {
    let agents = AgentCommands::new(config, discovery)?;
    agents.notes.iter().for_each(|note| output::note(note));
    let has_file = !agents.launcher.bootstraps_via_stdin();
    let file = has_file.then(|| Path::new(PLACEHOLDER).join(BOOTSTRAP));
    let commands = agents.commands(file.as_deref())?;
    let line = |LaunchCommand { program, args, .. }: &LaunchCommand| {
        format!("agent command  {}\n", quote_words(std::iter::once(program).chain(args)))
    };
    let commands: String = commands.iter().map(line).collect();
    Ok(commands + &describe_options(&agents.step_options))
}

fn describe_options(options: &[RequiredOption]) -> String {
    let line = |RequiredOption { option, why }: &RequiredOption| {
        format!("option of the agents' srun  {option}  {FAINT}{why}{FAINT:#}\n")
    };
    options.iter().map(line).collect()
}

/// Command, binding and environment of each rank.
fn describe(attempt: &AttemptSpec) -> String {
    let mut text = String::new();
    for rank in &attempt.ranks {
        let Some((_, node, placed)) = attempt.job.placement.find_rank(rank.spec.rank) else {
            continue;
        };
        text.push_str(&format!("{HEADING}rank {} on {}{HEADING:#}\n", rank.spec.rank, node.host));
        text.push_str(&format!("  command  {}\n", quote_words(&rank.spec.command)));
        let line = |name: &str, what: &str, why: &str| {
            format!("  {name:<8} {what}  {FAINT}{why}{FAINT:#}\n")
        };
        text.push_str(&line("cpus", &placed.cpus.to_string(), &placed.reasons.cpus));
        text.push_str(&line("memory", &memory_policy(&placed.memory), &placed.reasons.memory));
        for env in &rank.variables {
            let value = env.value.as_deref().map_or("(unset)".to_owned(), quote);
            text.push_str(&line("env", &format!("{}={value}", env.variable), &env.why));
        }
    }
    text
}

fn memory_policy(policy: &MemoryPolicy) -> String {
    let list = |nodes: &[u32]| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    match policy {
        MemoryPolicy::Prefer(nodes) => format!("prefer NUMA {}", list(nodes)),
        MemoryPolicy::Bind(nodes) => format!("bind to NUMA {}", list(nodes)),
        MemoryPolicy::Default => "default".to_owned(),
    }
}
