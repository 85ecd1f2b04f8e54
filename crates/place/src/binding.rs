//! A placement in the words of the launchers: the options that make each bind the ranks as
//! planned.

use regatta_model::{
    CpuSet, Layout, MemoryPolicy, PlacedNode, PlacedRank, Placement, Warning, hostlist,
};

/// The launchers whose options are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
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

/// The options, a line for each kind of node (a rank file for Open MPI), and what to know about
/// them.
pub fn options(placement: &Placement, launcher: Launcher) -> (String, Vec<Warning>) {
    if launcher == Launcher::OpenMpi {
        return (rankfile(placement), Vec::new());
    }
    let mut text = String::new();
    for (i, layout) in placement.layouts.iter().enumerate() {
        let nodes: Vec<&PlacedNode> =
            placement.nodes.iter().filter(|n| n.layout as usize == i).collect();
        let group = Group { layout, nodes, alone: placement.layouts.len() == 1 };
        text.push_str(&match launcher {
            Launcher::Srun => group.srun(),
            Launcher::Pals => group.pals(),
            Launcher::Flux => group.flux(),
            Launcher::Mpich | Launcher::OpenMpi => group.mpich(),
        });
        text.push('\n');
    }
    (text, warnings(placement, launcher))
}

fn warnings(placement: &Placement, launcher: Launcher) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if launcher == Launcher::Srun {
        warnings.push(Warning {
            code: "srun-exclusive".to_owned(),
            what: "Slurm honours these masks only if the step has all CPUs of its nodes".to_owned(),
            hint: "allocate with sbatch or salloc --exclusive, and run srun inside".to_owned(),
        });
    }
    if placement.layouts.len() > 1 {
        warnings.push(Warning {
            code: "uneven-nodes".to_owned(),
            what: format!("the nodes are of {} kinds: a line for each", placement.layouts.len()),
            hint: match launcher {
                Launcher::Flux => "flux run takes one line: give every node as many ranks",
                _ => "start them as parts of one job, with a colon between the lines",
            }
            .to_owned(),
        });
    }
    warnings
}

/// Nodes of one kind.
struct Group<'a> {
    layout: &'a Layout,
    nodes: Vec<&'a PlacedNode>,
    /// Whether there is no other kind.
    alone: bool,
}

impl Group<'_> {
    fn ranks(&self) -> usize {
        self.nodes.len() * self.layout.ranks.len()
    }

    fn hosts(&self) -> String {
        hostlist::compress(&self.nodes.iter().map(|n| n.host.as_str()).collect::<Vec<_>>())
    }

    fn each(&self, separator: &str, of: impl Fn(&PlacedRank) -> String) -> String {
        self.layout.ranks.iter().map(of).collect::<Vec<_>>().join(separator)
    }

    fn gpus(&self) -> bool {
        self.layout.ranks.iter().any(|r| !r.gpus.is_empty())
    }

    fn srun(&self) -> String {
        let mut words = vec![
            format!("--nodes={}", self.nodes.len()),
            format!("--ntasks={}", self.ranks()),
            format!("--ntasks-per-node={}", self.layout.ranks.len()),
            "--distribution=block".to_owned(),
            format!("--cpu-bind=mask_cpu:{}", self.each(",", |r| format!("0x{}", r.mask))),
        ];
        words.extend(self.srun_memory());
        if self.gpus() {
            words.push("--gpu-bind=none".to_owned());
        }
        if !self.alone {
            words.push(format!("--nodelist={}", self.hosts()));
        }
        words.join(" ")
    }

    fn srun_memory(&self) -> Option<String> {
        let mask = |nodes: &[u32]| {
            let set: CpuSet = nodes.iter().map(|&n| n as usize).collect();
            format!("0x{}", set.to_mask())
        };
        let kind = match self.layout.ranks.first()?.memory {
            MemoryPolicy::Prefer(_) => "prefer,mask_mem:",
            MemoryPolicy::Bind(_) => "mask_mem:",
            MemoryPolicy::System => return None,
        };
        let nodes = self.each(",", |r| match &r.memory {
            MemoryPolicy::Prefer(n) | MemoryPolicy::Bind(n) => mask(n),
            MemoryPolicy::System => mask(&r.numa),
        });
        Some(format!("--mem-bind={kind}{nodes}"))
    }

    fn pals(&self) -> String {
        let mut words = vec![
            format!("-n {}", self.ranks()),
            format!("--ppn {}", self.layout.ranks.len()),
            format!("--cpu-bind list:{}", self.each(":", |r| r.cpus.to_string())),
        ];
        if !self.alone {
            let hosts: Vec<&str> = self.nodes.iter().map(|n| n.host.as_str()).collect();
            words.push(format!("--hosts {}", hosts.join(",")));
        }
        words.join(" ")
    }

    fn flux(&self) -> String {
        let mut words = vec![
            format!("-N {}", self.nodes.len()),
            format!("-n {}", self.ranks()),
            "--exclusive".to_owned(),
            format!("-o 'cpu-affinity=map:{}'", self.each(";", |r| r.cpus.to_string())),
        ];
        if self.gpus() {
            words.push("-o gpu-affinity=off".to_owned());
        }
        if !self.alone {
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
            format!("-bind-to user:{}", self.each(",", cpus)),
        ];
        if !self.alone {
            let hosts: Vec<&str> = self.nodes.iter().map(|n| n.host.as_str()).collect();
            words.push(format!("-hosts {}", hosts.join(",")));
        }
        words.join(" ")
    }
}

/// Open MPI takes lists of CPUs for each rank only from a file.
fn rankfile(placement: &Placement) -> String {
    let mut lines = vec![
        "# Rank file for Open MPI 4; save it as FILE and start with".to_owned(),
        format!(
            // Without the first, a slot is a core with all its threads; without the second, CPUs are
            // counted in the order of their cores.
            "#   mpirun -n {} --use-hwthread-cpus --mca rmaps_rank_file_physical 1 --rankfile FILE ...",
            placement.ranks
        ),
    ];
    let mut ranks: Vec<(u32, &str, &PlacedRank)> = Vec::new();
    for node in &placement.nodes {
        let Some(layout) = placement.layouts.get(node.layout as usize) else { continue };
        ranks
            .extend(node.ranks.iter().zip(&layout.ranks).map(|(&n, r)| (n, node.host.as_str(), r)));
    }
    ranks.sort_by_key(|(number, ..)| *number);
    lines.extend(ranks.iter().map(|(n, host, rank)| format!("rank {n}={host} slot={}", rank.cpus)));
    lines.join("\n") + "\n"
}
