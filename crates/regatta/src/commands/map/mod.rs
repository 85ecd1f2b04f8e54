//! `regatta map`: prints the machine and the placement of each rank.

mod check;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regatta_launch::rank_env;
use regatta_model::machine::HugePages;
use regatta_model::units::{format_bytes, pluralize};
use regatta_model::{
    Allocation, JobSpec, Launcher, Machine, NodeLayout, PlacedNode, PlacedRank, Placement,
    PlacementReasons, Scheduler, Software, document, hostlist,
};
use regatta_place::launcher_options::launcher_options;
use serde::Serialize;

use crate::cli::{HEADING, MapArgs};
use crate::output;
use regatta_draw::frame::TerminalOptions;
use regatta_draw::table::table;
use regatta_launch::discovery::PlacedJob;
use regatta_observe::view::node;

/// Runs the command.
pub fn run(args: &MapArgs) -> Result<ExitCode> {
    let placed = PlacedJob::new(&args.source.source(), &args.job.request())?;
    if args.check {
        return check::run(args, &placed);
    }
    let is_stdout = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
    let to_stdout = [
        ("--dump -", is_stdout(&args.dump)),
        ("--svg -", is_stdout(&args.svg)),
        ("--json", args.json),
        ("--format", args.format.is_some()),
    ];
    let to_stdout: Vec<&str> =
        to_stdout.into_iter().filter(|(_, is_stdout)| *is_stdout).map(|(name, _)| name).collect();
    if let [one, other, ..] = to_stdout[..] {
        bail!("{one} and {other} cannot both write to standard output: write one to a file");
    }
    if let Some(path) = &args.dump {
        write_document(path, &document::to_json(&placed.machines[0])?).context("--dump")?;
    }
    if let Some(path) = &args.svg {
        let (machine, layout) = first_layout(&placed);
        let title = format!("{} with {}", machine.host, pluralize(layout.ranks.len(), "rank"));
        write_document(path, &node::svg(machine, layout, &title)).context("--svg")?;
    }
    if let Some(launcher) = args.format {
        let required = rank_env::required_options(&placed, launcher);
        let (text, warnings) = launcher_options(&placed.placement, launcher, &required);
        output::print(&text)?;
        // GPU visibility is not part of the binding options.
        let of_placement = placed.placement.warnings.iter().filter(|w| w.code != "visibility");
        of_placement.chain(&warnings).for_each(output::warn);
    } else if args.json {
        output::print(&json(&placed)?)?;
    } else if args.dump.is_none() && args.svg.is_none() {
        output::print(&text(&placed, args.why))?;
        placed.placement.warnings.iter().for_each(output::warn);
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file and says so; `-` is standard output.
fn write_document(path: &Path, text: &str) -> Result<()> {
    output::write_file(path, text)?;
    if path != Path::new("-") {
        output::eprint(&format!("wrote {}\n", path.display()));
    }
    Ok(())
}

#[derive(Serialize)]
struct MapReport<'a> {
    machines: &'a [Machine],
    allocation: &'a Allocation,
    site: SiteReport<'a>,
    job: &'a JobSpec,
    placement: &'a Placement,
}

#[derive(Serialize)]
struct SiteReport<'a> {
    profile: &'a str,
    why: &'a str,
}

fn json(placed: &PlacedJob) -> Result<String> {
    output::json_line(&MapReport {
        machines: &placed.machines,
        allocation: &placed.allocation,
        site: SiteReport { profile: &placed.site.profile.name, why: &placed.site.why },
        job: &placed.job,
        placement: &placed.placement,
    })
}

/// Machine and layout of the first node.
fn first_layout(placed: &PlacedJob) -> (&Machine, &NodeLayout) {
    let layout = &placed.placement.layouts[0];
    let node = placed.placement.nodes.iter().find(|n| n.layout == 0);
    (node.map_or(&placed.machines[0], |n| placed.machine(n)), layout)
}

fn text(placed: &PlacedJob, why: bool) -> String {
    let color = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
    let options = TerminalOptions { width: terminal_width(), color, unicode: supports_unicode() };
    let Placement { layouts, nodes: all, .. } = &placed.placement;
    let mut lines = summary(placed);
    for (i, layout) in layouts.iter().enumerate() {
        let nodes: Vec<&PlacedNode> = all.iter().filter(|n| n.layout as usize == i).collect();
        let Some(node) = nodes.first() else { continue };
        let drawing = node::terminal(placed.machine(node), layout, options);
        lines.extend([String::new(), drawing.trim_end().to_owned(), String::new()]);
        if all.len() > 1 {
            let hosts: Vec<&str> = nodes.iter().map(|n| n.host.as_str()).collect();
            let identical = if hosts.len() > 1 { "identical " } else { "" };
            let nodes = pluralize(hosts.len(), &format!("{identical}node"));
            let hosts = hostlist::compress(&hosts);
            lines.push(format!("{HEADING}layout of {nodes}:{HEADING:#} {hosts}"));
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
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    // Containers often leave the locale unset; only an explicit one without UTF-8 rules Unicode out.
    locale.is_none_or(|l| {
        l.to_ascii_lowercase().replace('-', "").contains("utf8") || !std::io::stdout().is_terminal()
    })
}

/// Width of the terminal in columns.
pub fn terminal_width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let terminal = size.map(|size| usize::from(size.ws_col)).filter(|&width| width > 0);
    columns.or(terminal).unwrap_or(100).clamp(40, 240)
}

fn summary(placed: &PlacedJob) -> Vec<String> {
    let machine = &placed.machines[0];
    let site = format!("{} ({})", placed.site.profile.name, placed.site.why);
    let mut rows = vec![("site", site), ("job", job_line(placed))];
    rows.extend(software_line(&machine.software).map(|s| ("software", s)));
    rows.extend(limits_line(machine).map(|s| ("limits", s)));
    rows.extend(machine.notes.iter().map(|n| ("note", n.clone())));
    rows.into_iter().map(|(name, text)| format!("{HEADING}{name:<9}{HEADING:#}{text}")).collect()
}

fn job_line(placed: &PlacedJob) -> String {
    let allocation = &placed.allocation;
    let scheduler = match (allocation.scheduler, &allocation.job_id) {
        (scheduler, Some(id)) => format!("{} job {id}", scheduler_name(scheduler)),
        (scheduler, None) => scheduler_name(scheduler).to_owned(),
    };
    let me = match (allocation.this_rank, allocation.launcher) {
        (Some(me), Some(launcher)) => {
            format!("; this process is rank {}, started by {}", me.rank, launcher_name(launcher))
        }
        _ => String::new(),
    };
    let ranks = pluralize(placed.placement.ranks as usize, "rank");
    format!("{ranks} on {}, {scheduler}{me}", pluralize(placed.placement.nodes.len(), "node"))
}

fn scheduler_name(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::Slurm => "Slurm",
        Scheduler::Pbs => "PBS",
        Scheduler::Flux => "Flux",
        Scheduler::Hostfile => "hostfile",
        Scheduler::None => "no scheduler",
    }
}

fn launcher_name(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Srun => "srun",
        Launcher::Pals => "PALS mpiexec",
        Launcher::Flux => "flux run",
        Launcher::OpenMpi => "Open MPI",
        Launcher::Hydra => "MPICH (Hydra)",
        Launcher::Pmix => "a PMIx launcher",
        Launcher::Torch => "torchrun or DeepSpeed",
    }
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
    let found = parts.iter().filter_map(|(name, v)| Some(format!("{name} {}", v.as_ref()?)));
    let found: Vec<String> = found.collect();
    (!found.is_empty()).then(|| found.join(", "))
}

fn limits_line(machine: &Machine) -> Option<String> {
    let os = &machine.os;
    let memlock = os.memlock_bytes.map_or("unlimited".to_owned(), format_bytes);
    let pages = |HugePages { total, page_bytes, .. }: &HugePages| {
        format!("{total} huge pages of {}", format_bytes(*page_bytes))
    };
    let parts = [
        os.container.as_ref().map(|c| format!("inside {c}")),
        os.memlock_known.then(|| format!("memlock {memlock}")),
        os.shm_bytes.map(|b| format!("/dev/shm {}", format_bytes(b))),
    ];
    let parts = parts.into_iter().flatten().chain(os.hugepages.iter().map(pages));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn rank_table(layout: &NodeLayout, nodes: &[&PlacedNode]) -> Vec<String> {
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let row = |rank: &PlacedRank| {
        vec![
            global_ranks(nodes, rank.local_rank),
            rank.local_rank.to_string(),
            if rank.gpus.is_empty() { "-".to_owned() } else { list(&rank.gpus) },
            rank.cpus.to_string(),
            rank.mask.clone(),
            list(&rank.numa),
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
    let ranks = nodes.iter().filter_map(|n| n.ranks.get(local as usize)).map(u32::to_string);
    match ranks.collect::<Vec<_>>().as_slice() {
        [first, second, _, .., last] => format!("{first},{second},..,{last}"),
        few => few.join(","),
    }
}

fn placement_reasons(layout: &NodeLayout) -> Vec<String> {
    let mut lines = vec![String::new()];
    for rank in &layout.ranks {
        let PlacementReasons { gpu, cpus, memory, nic, threads } = &rank.reasons;
        lines.push(format!("{HEADING}local rank {}{HEADING:#}", rank.local_rank));
        let names = ["gpu", "cpus", "memory", "nic", "threads"].into_iter();
        let rows = names.zip([gpu, cpus, memory, nic, threads]);
        lines.extend(rows.map(|(name, text)| format!("  {name:<8}{text}")));
    }
    lines
}
