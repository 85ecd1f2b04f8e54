//! GRES request of a Slurm step that gives it all of the job's resources on each node. No I/O.

use std::collections::HashMap;

use regatta_model::hostlist;

/// Generic resources, mostly GPUs, that a step requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gres {
    /// A step gets everything without a request.
    #[default]
    Inherited,
    /// The same on every node: `gpu:4`.
    Uniform(String),
    /// Counts differ between nodes; the resources of each host. One step cannot request this, and
    /// Slurm rejects a per-node count that some node of the job does not have.
    PerNode(Vec<Option<String>>),
}

/// The request that covers all of the job's resources on `hosts`, from the output of
/// `scontrol show job -d JOBID`.
///
/// A step inherits the job's request literally: `--gpus-per-task=2` becomes two GPUs for the single
/// agent instead of two per task, and `--gpus=8` is distributed over the nodes again, regardless of
/// where the job's GPUs are. With `--exclusive` a step gets no GPU without a request. Only a request
/// per node is inherited correctly.
pub fn full_node_gres(scontrol: &str, hosts: &[String]) -> Gres {
    let has = |key: &str| scontrol.split_whitespace().any(|word| word.starts_with(key));
    let other = ["TresPerTask=", "TresPerJob=", "TresPerSocket="].into_iter().any(has);
    if has("TresPerNode=") && !other {
        return Gres::Inherited;
    }
    let mut by_node: HashMap<String, Option<String>> = HashMap::new();
    for line in scontrol.lines() {
        let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        let (Some(nodes), Some(gres)) = (value("Nodes="), value("GRES=")) else { continue };
        for node in hostlist::expand(nodes).unwrap_or_default() {
            by_node.insert(hostlist::short_hostname(&node).to_owned(), request(gres));
        }
    }
    let mut all = by_node.values();
    match all.next() {
        Some(first) if all.all(|gres| gres == first) => {
            first.clone().map_or(Gres::Inherited, Gres::Uniform)
        }
        None => Gres::Inherited,
        Some(_) => {
            let gres = |host: &String| by_node.get(hostlist::short_hostname(host))?.clone();
            Gres::PerNode(hosts.iter().map(gres).collect())
        }
    }
}

/// `srun` options for a step on one node. GPUs are requested per step, which Slurm grants also when
/// counts differ between nodes.
pub(crate) fn single_node_options(gres: &str) -> Vec<String> {
    let (mut gpus, mut others) = (Vec::new(), Vec::new());
    for item in gres.split(',') {
        match item.strip_prefix("gpu:") {
            Some(gpu) => gpus.push(gpu),
            None => others.push(item),
        }
    }
    let option = |name: &str, items: Vec<&str>| {
        (!items.is_empty()).then(|| format!("{name}={}", items.join(",")))
    };
    option("--gpus", gpus).into_iter().chain(option("--gres", others)).collect()
}

/// Converts a GRES listing such as `gpu:a100:4(IDX:0-3),nvme:1` to a request: drops the parentheses,
/// which may contain commas, and empty items.
fn request(gres: &str) -> Option<String> {
    let mut items = String::new();
    let mut depth = 0usize;
    for c in gres.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => items.push(c),
            _ => {}
        }
    }
    let is_requested = |item: &&str| !item.is_empty() && !item.ends_with(":0");
    let items: Vec<&str> = items.split(',').filter(is_requested).collect();
    (!items.is_empty()).then(|| items.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(text: &str) -> Vec<String> {
        hostlist::expand(text).unwrap()
    }

    #[test]
    fn per_task_request_becomes_per_node() {
        let job = "JobId=1 JobName=x\n   JOB_GRES=gpu:8\n\
                   \x20    Nodes=node[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:4(IDX:0-3)\n   TresPerTask=gres:gpu:2\n";
        assert_eq!(full_node_gres(job, &hosts("node[1-2]")), Gres::Uniform("gpu:4".to_owned()));
    }

    #[test]
    fn heterogeneous_nodes_get_individual_requests() {
        let job = "   JOB_GRES=gpu:3\n     Nodes=node1 CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0-1)\n\
                   \x20    Nodes=node2 CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:0)\n   TresPerJob=gres:gpu:3\n";
        let found = full_node_gres(job, &hosts("node2,node1.site,other"));
        let each = [Some("gpu:1".to_owned()), Some("gpu:2".to_owned()), None];
        assert_eq!(found, Gres::PerNode(each.to_vec()));
        let options = single_node_options("gpu:a100:2,nvme:1,gpu:1");
        assert_eq!(options, ["--gpus=a100:2,1", "--gres=nvme:1"]);
    }

    #[test]
    fn per_node_request_is_inherited() {
        let job = "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:4(IDX:0-3)\nTresPerNode=gres:gpu:4\n";
        let none = "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=\n";
        for job in [job, none, ""] {
            assert_eq!(full_node_gres(job, &hosts("n1")), Gres::Inherited);
        }
    }

    #[test]
    fn request_drops_device_indices_and_zero_counts() {
        let request = |text| request(text).unwrap_or_default();
        let listing = "gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3),nvme:1";
        assert_eq!(request(listing), "gpu:a100:2,gpu:v100:1,nvme:1");
        assert_eq!(request("gpu:0,shard:0(0/8)"), "");
        assert_eq!(request("(("), "");
    }

    proptest! {
        #[test]
        fn per_node_gres_covers_every_host(text in "(Nodes=|GRES=|gpu:|n[0-9]|[ ,()\\[\\]\n-]|Tres){0,20}") {
            if let Gres::PerNode(each) = full_node_gres(&text, &hosts("n[0-3]")) {
                prop_assert_eq!(each.len(), 4);
            }
        }
    }
}
