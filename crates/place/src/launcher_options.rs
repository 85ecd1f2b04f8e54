//! Launcher options that reproduce a placement.

use crate::site_profile::SiteSetting;
use regatta_model::{
    CpuSet, MemoryPolicy, NodeLayout, PlacedNode, PlacedRank, Placement, Warning, hostlist,
};

/// Launchers with known binding options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherSyntax {
    /// Slurm's srun.
    Srun,
    /// HPE's PALS mpiexec.
    Pals,
    /// flux run.
    Flux,
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's mpiexec (Hydra).
    Mpich,
}

/// A launcher option without which a setting has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredOption {
    /// The option with its value.
    pub option: String,
    /// The reason, one sentence.
    pub why: String,
}

/// The launcher options that settings of the site need to take effect.
pub fn required_options(settings: &[SiteSetting], launcher: LauncherSyntax) -> Vec<RequiredOption> {
    let of = |setting: &SiteSetting| match launcher {
        LauncherSyntax::Srun => setting.requires.srun.clone(),
        LauncherSyntax::Pals => setting.requires.pals.clone(),
        LauncherSyntax::Flux | LauncherSyntax::OpenMpi | LauncherSyntax::Mpich => None,
    };
    let required = |setting: &SiteSetting| {
        let value = setting.value.as_deref().unwrap_or_default();
        let why = format!("Without it, {}={value} has no effect.", setting.variable);
        of(setting).map(|option| RequiredOption { option, why })
    };
    settings.iter().filter_map(required).collect()
}

/// The options, one line per node type (a rankfile for Open MPI), each with the `required` ones, and
/// warnings about them.
pub fn launcher_options(
    placement: &Placement,
    launcher: LauncherSyntax,
    required: &[RequiredOption],
) -> (String, Vec<Warning>) {
    if launcher == LauncherSyntax::OpenMpi {
        return (rankfile(placement), Vec::new());
    }
    let options = required.iter().map(|required| required.option.clone());
    if launcher == LauncherSyntax::Srun
        && let Some(step) = uneven_step(placement)
    {
        // `plane` fills node after node up to the given number of ranks.
        let most = step.layout.ranks.len();
        let srun = step.srun_with(placement.ranks as usize, &format!("plane={most}"));
        let words: Vec<String> = [srun].into_iter().chain(options).collect();
        let warnings = [exclusive_warning()].into_iter().chain(uneven_warning(placement, most));
        return (words.join(" ") + "\n", warnings.collect());
    }
    let mut text = String::new();
    for (i, layout) in placement.layouts.iter().enumerate() {
        let nodes: Vec<_> = placement.nodes.iter().filter(|n| n.layout as usize == i).collect();
        let group = NodeGroup { layout, nodes, is_only: placement.layouts.len() == 1 };
        let mut words = vec![match launcher {
            LauncherSyntax::Srun => group.srun(),
            LauncherSyntax::Pals => group.pals(),
            LauncherSyntax::Flux => group.flux(),
            LauncherSyntax::Mpich | LauncherSyntax::OpenMpi => group.mpich(),
        }];
        words.extend(options.clone());
        text.push_str(&(words.join(" ") + "\n"));
    }
    (text, warnings(placement, launcher))
}

fn warnings(placement: &Placement, launcher: LauncherSyntax) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if launcher == LauncherSyntax::Srun {
        warnings.push(exclusive_warning());
    }
    let layouts = placement.layouts.len();
    if layouts > 1 {
        let hint = if launcher == LauncherSyntax::Flux {
            "flux run accepts a single line: use the same number of ranks on every node"
        } else {
            "start them as one MPMD job, the lines separated by colons"
        };
        let message = format!("the nodes have {layouts} different layouts, one line each");
        warnings.push(Warning::new("uneven-nodes", message, hint));
    }
    warnings
}

fn exclusive_warning() -> Warning {
    Warning::new(
        "srun-exclusive",
        "Slurm applies CPU masks only if the step has all CPUs of its nodes",
        "allocate with sbatch --exclusive or salloc --exclusive, and run srun inside",
    )
}

/// Equal nodes with different numbers of ranks in one step of `srun`, which has one list of masks:
/// that of the node with the most ranks, of which other nodes use the first.
fn uneven_step(placement: &Placement) -> Option<NodeGroup<'_>> {
    let layout = placement.layouts.iter().max_by_key(|layout| layout.ranks.len())?;
    let alike = placement.layouts.iter().all(|other| other.machine == layout.machine);
    let uneven = placement.layouts.len() > 1;
    let nodes = placement.nodes.iter().collect();
    (alike && uneven).then_some(NodeGroup { layout, nodes, is_only: true })
}

/// `srun` fills the first nodes; the plan may spread the ranks more evenly.
fn uneven_warning(placement: &Placement, most: usize) -> Option<Warning> {
    let ranks = placement.ranks as usize;
    let by_srun = |node: usize| ranks.saturating_sub(node * most).min(most);
    let mut nodes = placement.nodes.iter().enumerate();
    nodes.any(|(index, node)| by_srun(index) != node.ranks.len()).then(|| {
        Warning::new(
            "uneven-nodes",
            format!("srun puts up to {most} ranks on each node, the last node gets the rest"),
            "cores and devices of each local rank are the same; use a number of ranks that \
             is a multiple of the nodes for an even load",
        )
    })
}

/// Nodes of one type.
struct NodeGroup<'a> {
    layout: &'a NodeLayout,
    nodes: Vec<&'a PlacedNode>,
    /// Whether all nodes are of this type.
    is_only: bool,
}

impl NodeGroup<'_> {
    fn ranks(&self) -> usize {
        self.nodes.len() * self.layout.ranks.len()
    }

    fn hosts(&self) -> String {
        hostlist::compress(&self.nodes.iter().map(|n| n.host.as_str()).collect::<Vec<_>>())
    }

    fn join_ranks(&self, separator: &str, of: impl Fn(&PlacedRank) -> String) -> String {
        self.layout.ranks.iter().map(of).collect::<Vec<_>>().join(separator)
    }

    /// One argument with all hosts, unless all nodes are of this type.
    fn host_option(&self, name: &str) -> Option<String> {
        let hosts: Vec<&str> = self.nodes.iter().map(|n| n.host.as_str()).collect();
        (!self.is_only).then(|| format!("{name} {}", hosts.join(",")))
    }

    fn has_gpus(&self) -> bool {
        self.layout.ranks.iter().any(|r| !r.gpus.is_empty())
    }

    fn srun(&self) -> String {
        self.srun_with(self.ranks(), "block")
    }

    fn srun_with(&self, ranks: usize, distribution: &str) -> String {
        let mut words = vec![
            format!("--nodes={}", self.nodes.len()),
            format!("--ntasks={ranks}"),
            format!("--ntasks-per-node={}", self.layout.ranks.len()),
            format!("--distribution={distribution}"),
            format!("--cpu-bind=mask_cpu:{}", self.join_ranks(",", |r| format!("0x{}", r.mask))),
        ];
        words.extend(self.srun_memory());
        if self.has_gpus() {
            words.push("--gpu-bind=none".to_owned());
        }
        if !self.is_only {
            words.push(format!("--nodelist={}", self.hosts()));
        }
        words.join(" ")
    }

    fn srun_memory(&self) -> Option<String> {
        let kind = match self.layout.ranks.first()?.memory {
            MemoryPolicy::Prefer(_) => "prefer,mask_mem:",
            MemoryPolicy::Bind(_) => "mask_mem:",
            MemoryPolicy::Default => return None,
        };
        let masks = self.join_ranks(",", |r| {
            let nodes = match &r.memory {
                MemoryPolicy::Prefer(nodes) | MemoryPolicy::Bind(nodes) => nodes,
                MemoryPolicy::Default => &r.numa,
            };
            let nodes: CpuSet = nodes.iter().map(|&n| n as usize).collect();
            format!("0x{}", nodes.to_mask())
        });
        Some(format!("--mem-bind={kind}{masks}"))
    }

    fn pals(&self) -> String {
        let mut words = vec![
            format!("-n {}", self.ranks()),
            format!("--ppn {}", self.layout.ranks.len()),
            format!("--cpu-bind list:{}", self.join_ranks(":", |r| r.cpus.to_string())),
        ];
        words.extend(self.host_option("--hosts"));
        words.join(" ")
    }

    fn flux(&self) -> String {
        let mut words = vec![
            format!("-N {}", self.nodes.len()),
            format!("-n {}", self.ranks()),
            "--exclusive".to_owned(),
            format!("-o 'cpu-affinity=map:{}'", self.join_ranks(";", |r| r.cpus.to_string())),
        ];
        if self.has_gpus() {
            words.push("-o gpu-affinity=off".to_owned());
        }
        if !self.is_only {
            words.push(format!("--requires=host:{}", self.hosts()));
        }
        words.join(" ")
    }

    fn mpich(&self) -> String {
        let cpus =
            |r: &PlacedRank| r.cpus.iter().map(|c| c.to_string()).collect::<Vec<_>>().join("+");
        let mut words = vec![
            format!("-n {}", self.ranks()),
            format!("-ppn {}", self.layout.ranks.len()),
            format!("-bind-to user:{}", self.join_ranks(",", cpus)),
        ];
        words.extend(self.host_option("-hosts"));
        words.join(" ")
    }
}

/// Open MPI accepts per-rank CPU lists only from a rankfile.
fn rankfile(placement: &Placement) -> String {
    let mut lines = vec![
        "# Rankfile for Open MPI 4; save it as FILE and run".to_owned(),
        format!(
            // Without the first option a slot is a core with all its threads; without the second
            // one CPUs are numbered logically.
            "#   mpirun -n {} --use-hwthread-cpus --mca rmaps_rank_file_physical 1 --rankfile FILE ...",
            placement.ranks
        ),
    ];
    let mut ranks: Vec<(u32, &str, &CpuSet)> = Vec::new();
    for node in &placement.nodes {
        let Some(layout) = placement.layouts.get(node.layout as usize) else { continue };
        let placed = node.ranks.iter().zip(&layout.ranks);
        ranks.extend(placed.map(|(&rank, placed)| (rank, node.host.as_str(), &placed.cpus)));
    }
    ranks.sort_by_key(|(rank, ..)| *rank);
    lines.extend(ranks.iter().map(|(rank, host, cpus)| format!("rank {rank}={host} slot={cpus}")));
    lines.join("\n") + "\n"
}
