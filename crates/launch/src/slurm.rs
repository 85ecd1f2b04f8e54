//! What a Slurm step has to ask for to have all that the job has on a node. No I/O.

use regatta_model::hostlist;

/// The generic resources (GPUs, mostly) that a step should ask for on each of `hosts` to have all
/// of the job's there, from what `scontrol show job -d JOBID` prints; `None` where it gets them
/// without asking.
///
/// A step takes over the job's request in the job's own terms: `--gpus-per-task=2` is two for the
/// one agent, not two for each of the job's tasks, and `--gpus=8` is spread over the nodes anew,
/// though the job's are where they are. Of nodes that the job has whole (`--exclusive`) a step gets
/// no GPU at all unless it asks. Only what was asked for by node comes out right.
pub fn whole_gres(scontrol: &str, hosts: &[String]) -> Vec<Option<String>> {
    let words = || scontrol.split_whitespace();
    let asked = |way: &str| words().any(|word| word.starts_with(way));
    let by_node = asked("TresPerNode=");
    let otherwise = ["TresPerTask=", "TresPerJob=", "TresPerSocket="].into_iter().any(asked);
    if by_node && !otherwise {
        return vec![None; hosts.len()];
    }
    let mut all = vec![None; hosts.len()];
    for line in scontrol.lines() {
        let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        let (Some(nodes), Some(gres)) = (value("Nodes="), value("GRES=")) else { continue };
        let (Ok(nodes), Some(gres)) = (hostlist::expand(nodes), request(gres)) else { continue };
        let nodes: std::collections::HashSet<&str> =
            nodes.iter().map(|node| hostlist::short(node)).collect();
        for (host, slot) in hosts.iter().zip(&mut all) {
            if nodes.contains(hostlist::short(host)) {
                *slot = Some(gres.clone());
            }
        }
    }
    all
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
        let four = Some("gpu:4".to_owned());
        assert_eq!(whole_gres(job, &hosts("node[1-2]")), [four.clone(), four.clone()]);
        assert_eq!(whole_gres(job, &hosts("node2.site,other")), [four, None]);
    }

    #[test]
    fn uneven_nodes_are_told_apart() {
        let job = "   JOB_GRES=gpu:3\n     Nodes=node1 CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0-1)\n\
                   \x20    Nodes=node2 CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:0)\n   TresPerJob=gres:gpu:3\n";
        let found = whole_gres(job, &hosts("node[1-2]"));
        assert_eq!(found, [Some("gpu:2".to_owned()), Some("gpu:1".to_owned())]);
    }

    #[test]
    fn what_was_asked_for_by_node_is_left_to_slurm() {
        let job = "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:4(IDX:0-3)\nTresPerNode=gres:gpu:4\n";
        assert_eq!(whole_gres(job, &hosts("n1")), [None]);
        assert_eq!(whole_gres("Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=\n", &hosts("n1")), [None]);
        assert_eq!(whole_gres("", &hosts("n1")), [None]);
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
        fn any_text_gives_one_answer_a_host(text in "(Nodes=|GRES=|gpu:|n[0-9]|[ ,()\\[\\]\n-]|Tres){0,20}") {
            prop_assert_eq!(whole_gres(&text, &hosts("n[0-3]")).len(), 4);
        }
    }
}
