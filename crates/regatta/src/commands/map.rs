//! `regatta map`: prints the machine and the placement of each rank.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_model::{
    Machine, NodeLayout, PlacedNode, Placement, Software, document, hostlist, units,
};
use regatta_place::launcher_options::launcher_options;
use serde::Serialize;

use crate::cli::{HEADING, MapArgs};
use crate::draw::{self, TerminalOptions};
use crate::output;
use crate::plan::JobPlan;
use crate::table::table;

/// Runs the command.
pub fn run(args: &MapArgs) -> Result<ExitCode> {
    let plan = JobPlan::new(&args.source, &args.job)?;
    if args.check {
        return super::check::run(args, &plan);
    }
    if [&args.dump, &args.svg].iter().all(|p| p.as_deref() == Some(Path::new("-"))) {
        bail!("--dump and --svg cannot both write to standard output");
    }
    if let Some(path) = &args.dump {
        output::write_file(path, &document::to_json(&plan.machines[0])?)?;
    }
    if let Some(path) = &args.svg {
        let (machine, layout) = first_layout(&plan);
        let title = format!("{} with {} ranks", machine.host, layout.ranks.len());
        output::write_file(path, &draw::svg(machine, layout, &title))?;
    }
    if let Some(launcher) = args.format {
        let (text, warnings) = launcher_options(&plan.placement, launcher.into());
        output::print(&text)?;
        // GPU visibility is not part of the binding options.
        let of_plan = plan.placement.warnings.iter().filter(|w| w.code != "visibility");
        of_plan.chain(&warnings).for_each(output::warn);
    } else if args.json {
        output::print(&json(&plan)?)?;
    } else if args.dump.is_none() && args.svg.is_none() {
        output::print(&text(&plan, args.why))?;
        plan.placement.warnings.iter().for_each(output::warn);
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct MapReport<'a> {
    machines: &'a [Machine],
    allocation: &'a regatta_model::Allocation,
    site: SiteReport<'a>,
    job: &'a regatta_model::JobSpec,
    placement: &'a Placement,
}

#[derive(Serialize)]
struct SiteReport<'a> {
    profile: &'a str,
    why: &'a str,
}

fn json(plan: &JobPlan) -> Result<String> {
    let report = MapReport {
        machines: &plan.machines,
        allocation: &plan.allocation,
        site: SiteReport { profile: &plan.site.profile.name, why: &plan.site.why },
        job: &plan.job,
        placement: &plan.placement,
    };
    let mut text = serde_json::to_string(&report)?;
    text.push('\n');
    Ok(text)
}

/// Machine and layout of the first node.
fn first_layout(plan: &JobPlan) -> (&Machine, &NodeLayout) {
    let layout = &plan.placement.layouts[0];
    let node = plan.placement.nodes.iter().find(|n| n.layout == 0);
    (node.map_or(&plan.machines[0], |n| plan.machine(n)), layout)
}

fn text(plan: &JobPlan, why: bool) -> String {
    let color = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
    let mut lines = summary(plan);
    for (i, layout) in plan.placement.layouts.iter().enumerate() {
        let nodes: Vec<&PlacedNode> =
            plan.placement.nodes.iter().filter(|n| n.layout as usize == i).collect();
        let Some(node) = nodes.first() else { continue };
        let options =
            TerminalOptions { width: terminal_width(), color, unicode: supports_unicode() };
        lines.push(String::new());
        lines.push(draw::terminal(plan.machine(node), layout, options).trim_end().to_owned());
        lines.push(String::new());
        if plan.placement.nodes.len() > 1 {
            let hosts: Vec<&str> = nodes.iter().map(|n| n.host.as_str()).collect();
            let count = nodes.len();
            lines.push(format!(
                "{HEADING}{count} identical nodes:{HEADING:#} {}",
                hostlist::compress(&hosts)
            ));
        }
        lines.extend(rank_table(layout, &nodes));
        if why {
            lines.extend(placement_reasons(layout));
        }
    }
    lines.join("\n") + "\n"
}

/// Whether the terminal supports Unicode.
pub fn supports_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|v| std::env::var(v).ok().filter(|s| !s.is_empty()));
    // Containers often leave the locale unset; only an explicit one without UTF-8 rules Unicode out.
    locale.is_none_or(|l| {
        l.to_ascii_lowercase().replace('-', "").contains("utf8") || !std::io::stdout().is_terminal()
    })
}

/// Width of the terminal in columns.
pub fn terminal_width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal =
        rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|w| usize::from(w.ws_col));
    columns.or(terminal.filter(|&w| w > 0)).unwrap_or(100).clamp(40, 240)
}

fn summary(plan: &JobPlan) -> Vec<String> {
    let machine = &plan.machines[0];
    let mut rows: Vec<(&str, String)> = Vec::new();
    rows.push(("site", format!("{} ({})", plan.site.profile.name, plan.site.why)));
    rows.push(("job", job_line(plan)));
    rows.extend(software_line(&machine.software).map(|s| ("software", s)));
    rows.extend(limits_line(machine).map(|s| ("limits", s)));
    rows.extend(machine.notes.iter().map(|n| ("note", n.clone())));
    rows.into_iter().map(|(name, text)| format!("{HEADING}{name:<9}{HEADING:#}{text}")).collect()
}

fn job_line(plan: &JobPlan) -> String {
    let allocation = &plan.allocation;
    let scheduler = match (allocation.scheduler, &allocation.job_id) {
        (regatta_model::Scheduler::None, _) => "no scheduler".to_owned(),
        (scheduler, Some(id)) => format!("{scheduler:?} job {id}"),
        (scheduler, None) => format!("{scheduler:?}"),
    };
    let me = match (allocation.this_rank, allocation.launcher) {
        (Some(me), Some(launcher)) => {
            format!("; this process is rank {}, started by {launcher:?}", me.rank)
        }
        _ => String::new(),
    };
    let nodes = plan.placement.nodes.len();
    format!(
        "{} on {}, {scheduler}{me}",
        units::pluralize(plan.placement.ranks as usize, "rank"),
        units::pluralize(nodes, "node")
    )
}

fn software_line(software: &Software) -> Option<String> {
    let parts = [
        ("NVIDIA driver", &software.nvidia_driver),
        ("CUDA up to", &software.cuda_driver),
        ("amdgpu", &software.amdgpu_driver),
        ("ROCm", &software.rocm),
        ("NCCL", &software.nccl),
        ("RCCL", &software.rccl),
        ("libfabric", &software.libfabric),
        ("network plug-in", &software.net_plugin),
    ];
    let found: Vec<String> =
        parts.iter().filter_map(|(name, v)| Some(format!("{name} {}", v.as_ref()?))).collect();
    (!found.is_empty()).then(|| found.join(", "))
}

fn limits_line(machine: &Machine) -> Option<String> {
    let os = &machine.os;
    let mut parts = Vec::new();
    parts.extend(os.container.as_ref().map(|c| format!("inside {c}")));
    if os.memlock_known {
        parts.push(format!(
            "memlock {}",
            os.memlock_bytes.map_or("unlimited".to_owned(), units::format_bytes)
        ));
    }
    parts.extend(os.shm_bytes.map(|b| format!("/dev/shm {}", units::format_bytes(b))));
    let pages = |p: &regatta_model::machine::HugePages| {
        format!("{} huge pages of {}", p.total, units::format_bytes(p.page_bytes))
    };
    parts.extend(os.hugepages.iter().map(pages));
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn rank_table(layout: &NodeLayout, nodes: &[&PlacedNode]) -> Vec<String> {
    let row = |rank: &regatta_model::PlacedRank| {
        let gpus = rank.gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let numa = rank.numa.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        vec![
            global_ranks(nodes, rank.local_rank),
            rank.local_rank.to_string(),
            if gpus.is_empty() { "-".to_owned() } else { gpus },
            rank.cpus.to_string(),
            rank.mask.clone(),
            numa,
            rank.nic.clone().unwrap_or_else(|| "-".to_owned()),
            rank.omp_num_threads.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = layout.ranks.iter().map(row).collect();
    let header = ["rank", "local", "gpu", "cpus", "mask", "numa", "nic", "threads"];
    let mut lines = table(&header, &rows);
    lines[0] = format!("{HEADING}{}{HEADING:#}", lines[0]);
    lines
}

/// Global ranks of one local rank on nodes with the same layout: `0,8,..,56`.
fn global_ranks(nodes: &[&PlacedNode], local: u32) -> String {
    let ranks: Vec<String> =
        nodes.iter().filter_map(|n| n.ranks.get(local as usize)).map(u32::to_string).collect();
    match ranks.len() {
        0..=3 => ranks.join(","),
        n => format!("{},{},..,{}", ranks[0], ranks[1], ranks[n - 1]),
    }
}

fn placement_reasons(layout: &NodeLayout) -> Vec<String> {
    let mut lines = vec![String::new()];
    for rank in &layout.ranks {
        let why = &rank.reasons;
        lines.push(format!("{HEADING}local rank {}{HEADING:#}", rank.local_rank));
        let rows = [
            ("gpu", &why.gpu),
            ("cpus", &why.cpus),
            ("memory", &why.memory),
            ("nic", &why.nic),
            ("threads", &why.threads),
        ];
        lines.extend(rows.iter().map(|(name, text)| format!("  {name:<8}{text}")));
    }
    lines
}
