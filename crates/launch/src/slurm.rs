//! What a Slurm step has to ask for to have all that the job has on a node. No I/O.

use std::collections::HashMap;

use regatta_model::hostlist;

/// The generic resources, GPUs mostly, that steps ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gres {
    /// What a step gets without asking is all.
    #[default]
    Inherited,
    /// The same on each node: `gpu:4`.
    Same(String),
    /// The job has other numbers on other nodes; for each host what it has there. One step cannot
    /// ask for that, and Slurm refuses a number by node that not all nodes of the job have.
    Each(Vec<Option<String>>),
}

/// What to ask for on `hosts` to have all that the job has there, from what
/// `scontrol show job -d JOBID` prints.
///
/// A step takes over the job's request in the job's own terms: `--gpus-per-task=2` is two for the
/// one agent, not two for each of the job's tasks, and `--gpus=8` is spread over the nodes anew,
/// though the job's are where they are. Of nodes that the job has whole (`--exclusive`) a step gets
/// no GPU at all unless it asks. Only what was asked for by node comes out right.
pub fn whole_gres(scontrol: &str, hosts: &[String]) -> Gres {
    let asked = |way: &str| scontrol.split_whitespace().any(|word| word.starts_with(way));
    let otherwise = ["TresPerTask=", "TresPerJob=", "TresPerSocket="].into_iter().any(asked);
    if asked("TresPerNode=") && !otherwise {
        return Gres::Inherited;
    }
    let mut of_node: HashMap<String, Option<String>> = HashMap::new();
    for line in scontrol.lines() {
        let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        let (Some(nodes), Some(gres)) = (value("Nodes="), value("GRES=")) else { continue };
        for node in hostlist::expand(nodes).unwrap_or_default() {
            of_node.insert(hostlist::short(&node).to_owned(), request(gres));
        }
    }
    let mut all = of_node.values();
    match all.next() {
        Some(first) if all.all(|gres| gres == first) => {
            first.clone().map_or(Gres::Inherited, Gres::Same)
        }
        None => Gres::Inherited,
        Some(_) => {
            let of = |host: &String| of_node.get(hostlist::short(host)).cloned().flatten();
            Gres::Each(hosts.iter().map(of).collect())
        }
    }
}

/// A request for one node in the terms that Slurm grants on uneven ones: GPUs for the whole step.
pub(crate) fn alone(gres: &str) -> Vec<String> {
    let (mut gpus, mut others) = (Vec::new(), Vec::new());
    for item in gres.split(',') {
        match item.strip_prefix("gpu:") {
            Some(gpu) => gpus.push(gpu),
            None => others.push(item),
        }
    }
    let ask = |option: &str, items: Vec<&str>| {
        (!items.is_empty()).then(|| format!("{option}={}", items.join(",")))
    };
    ask("--gpus", gpus).into_iter().chain(ask("--gres", others)).collect()
}

/// A request for what is listed as `gpu:a100:4(IDX:0-3),nvme:1`: the same without the parentheses,
/// in which there may be commas.
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
    let some = |item: &&str| !item.is_empty() && !item.ends_with(":0");
    let items: Vec<&str> = items.split(',').filter(some).collect();
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
    fn what_is_asked_for_by_task_or_job_is_asked_for_by_node() {
        let job = "JobId=1 JobName=x\n   JOB_GRES=gpu:8\n\
                   \x20    Nodes=node[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:4(IDX:0-3)\n   TresPerTask=gres:gpu:2\n";
        assert_eq!(whole_gres(job, &hosts("node[1-2]")), Gres::Same("gpu:4".to_owned()));
    }

    #[test]
    fn uneven_nodes_are_told_apart() {
        let job = "   JOB_GRES=gpu:3\n     Nodes=node1 CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0-1)\n\
                   \x20    Nodes=node2 CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:0)\n   TresPerJob=gres:gpu:3\n";
        let found = whole_gres(job, &hosts("node2,node1.site,other"));
        let each = [Some("gpu:1".to_owned()), Some("gpu:2".to_owned()), None];
        assert_eq!(found, Gres::Each(each.to_vec()));
        assert_eq!(alone("gpu:a100:2,nvme:1,gpu:1"), ["--gpus=a100:2,1", "--gres=nvme:1"]);
    }

    #[test]
    fn what_was_asked_for_by_node_is_left_to_slurm() {
        let job = "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:4(IDX:0-3)\nTresPerNode=gres:gpu:4\n";
        let none = "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=\n";
        for job in [job, none, ""] {
            assert_eq!(whole_gres(job, &hosts("n1")), Gres::Inherited);
        }
    }

    #[test]
    fn requests_are_without_numbers_of_devices() {
        let request = |text| request(text).unwrap_or_default();
        assert_eq!(
            request("gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3),nvme:1"),
            "gpu:a100:2,gpu:v100:1,nvme:1"
        );
        assert_eq!(request("gpu:0,shard:0(0/8)"), "");
        assert_eq!(request("(("), "");
    }

    proptest! {
        #[test]
        fn each_host_has_its_answer(text in "(Nodes=|GRES=|gpu:|n[0-9]|[ ,()\\[\\]\n-]|Tres){0,20}") {
            if let Gres::Each(each) = whole_gres(&text, &hosts("n[0-3]")) {
                prop_assert_eq!(each.len(), 4);
            }
        }
    }
}
