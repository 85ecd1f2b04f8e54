//! The scheduler's directives of a job.

use super::{BatchJob, BatchScheduler, Dependency, QueueOption, context, mpiexec, settings};
use crate::launcher_options::{LauncherSyntax, required_options};
use crate::site_profile::Profile;

/// A directive and its reason.
pub(super) struct Directive {
    pub(super) option: String,
    pub(super) why: String,
}

fn directive(option: impl Into<String>, why: &str) -> Directive {
    Directive { option: option.into(), why: why.to_owned() }
}

/// All directives: the job's, then the site's, then the user's. A later one replaces an earlier one
/// for the same option.
pub(super) fn directives(
    scheduler: BatchScheduler,
    job: &BatchJob,
    site: &Profile,
) -> Vec<Directive> {
    let mut directives = match scheduler {
        BatchScheduler::Slurm => slurm(job, site),
        BatchScheduler::Pbs => pbs(job, site),
        BatchScheduler::Flux => flux(job, site),
    };
    let context = context(job, site);
    let required = match scheduler {
        BatchScheduler::Slurm => required_options(&settings(job, site), LauncherSyntax::Srun),
        // PALS has it as an option of mpiexec, not of the job.
        BatchScheduler::Pbs | BatchScheduler::Flux => Vec::new(),
    };
    directives.extend(required.into_iter().map(|r| directive(r.option, &r.why)));
    let own = site.batch.scheduler == Some(scheduler);
    let of_site = site.batch.directives.iter().filter(|d| own && d.when.are_met(&context));
    let of_site = of_site.map(|d| directive(d.option.clone(), &d.why));
    let given = job.directives.iter().map(|option| directive(option.clone(), "From --directive."));
    for later in of_site.chain(given) {
        match directives.iter_mut().find(|d| option_name(&d.option) == option_name(&later.option)) {
            Some(earlier) => *earlier = later,
            None => directives.push(later),
        }
    }
    directives
}

/// The name of an option without its value: `--qos` of `--qos=debug`, `-l walltime` of
/// `-l walltime=1:00:00`.
fn option_name(option: &str) -> &str {
    let is_list = option.starts_with("-l ") || option.starts_with("-W ");
    let end = if is_list { option.find('=') } else { option.find(['=', ' ']) };
    &option[..end.unwrap_or(option.len())]
}

/// The GPUs to request on each node.
fn requested_gpus(job: &BatchJob, site: &Profile) -> Option<u32> {
    let of_site = site.matches.hardware.gpus.filter(|_| site.batch.request_gpus != Some(false));
    job.gpus_per_node.or(of_site).filter(|gpus| *gpus > 0)
}

fn queue<'a>(job: &'a BatchJob, site: &'a Profile, scheduler: BatchScheduler) -> Option<&'a str> {
    // The queue of a site is one of its own scheduler.
    let of_site = site.batch.queue.as_deref().filter(|_| site.batch.scheduler == Some(scheduler));
    job.queue.as_deref().or(of_site)
}

/// `afterok:1:2` for each kind of dependency.
fn dependencies(after: &[Dependency]) -> Vec<String> {
    let of_kind = |must_succeed: bool, kind: &str| {
        let jobs = after.iter().filter(|dependency| dependency.must_succeed == must_succeed);
        let jobs: Vec<&str> = jobs.map(|dependency| dependency.job.as_str()).collect();
        (!jobs.is_empty()).then(|| format!("{kind}:{}", jobs.join(":")))
    };
    [of_kind(true, "afterok"), of_kind(false, "afterany")].into_iter().flatten().collect()
}

const ACCOUNT: &str = "The project that is charged.";
const NAME: &str = "The job's name in the queue.";
const NODES: &str = "`regatta launch` starts one agent per node, which starts its ranks.";
const TIME: &str = "Time limit.";
const AFTER: &str = "Jobs to wait for.";
const ARRAY: &str = "The indices of the array's tasks, each a job of its own.";
const OUTPUT: &str = "Output of the ranks, merged; the output of each one is in the run folder.";

fn slurm(job: &BatchJob, site: &Profile) -> Vec<Directive> {
    let mut list = vec![
        directive(format!("--job-name={}", job.name), NAME),
        directive(format!("--nodes={}", job.nodes), NODES),
        directive(
            "--exclusive",
            "Whole nodes: ranks are bound to cores, GPUs and NICs of the whole node.",
        ),
        directive("--mem=0", "All memory of the nodes."),
    ];
    if let Some(gpus) = requested_gpus(job, site) {
        let why = "All GPUs of each node; a request per task would disable peer-to-peer copies.";
        list.push(directive(format!("--gpus-per-node={gpus}"), why));
    }
    list.extend(job.time.map(|limit| directive(format!("--time={}", limit.clock()), TIME)));
    list.extend(job.account.iter().map(|name| directive(format!("--account={name}"), ACCOUNT)));
    if let Some(name) = queue(job, site, BatchScheduler::Slurm) {
        let (option, why) = match site.batch.queue_option.unwrap_or_default() {
            QueueOption::Partition => ("--partition", "The partition."),
            QueueOption::Qos => ("--qos", "The QOS, which selects the queue."),
        };
        list.push(directive(format!("{option}={name}"), why));
    }
    let after = dependencies(&job.after);
    if !after.is_empty() {
        list.push(directive(format!("--dependency={}", after.join(",")), AFTER));
    }
    if job.signal_before > 0 {
        let (signal, why) = match job.requeue {
            // Unlike TERM, it cannot be the start of a cancellation.
            true => ("USR1", "A signal to this script before the time limit: see its end."),
            false => {
                ("TERM", "TERM to this script before the time limit, so that the ranks can save.")
            }
        };
        list.push(directive(format!("--signal=B:{signal}@{}", job.signal_before), why));
    }
    list.push(match job.requeue {
        true => directive("--requeue", "Back into the queue after a node failure or preemption."),
        false => directive("--no-requeue", "A failed job is not repeated."),
    });
    if job.command.iter().chain(&job.launch_options).any(|word| word.starts_with("--spares")) {
        let why = "The job survives the loss of a node, which a spare replaces.";
        list.push(directive("--no-kill", why));
    }
    list.extend(job.array.map(|array| directive(format!("--array={array}"), ARRAY)));
    let output = if job.array.is_some() { "job-%a.out" } else { "job.out" };
    list.push(directive(format!("--output={}/{output}", job.job_dir), OUTPUT));
    list.push(directive("--open-mode=append", "A job that starts again keeps its earlier output."));
    list
}

fn pbs(job: &BatchJob, site: &Profile) -> Vec<Directive> {
    let gpus = requested_gpus(job, site).map(|gpus| format!(":ngpus={gpus}")).unwrap_or_default();
    let by_mpiexec = mpiexec::is_needed(BatchScheduler::Pbs, job, site);
    let own = site.batch.scheduler == Some(BatchScheduler::Pbs);
    let chunk = site.batch.chunk.iter().filter(|_| own).map(|chunk| format!(":{chunk}"));
    let chunk: String = chunk.collect();
    let mut list = vec![
        directive(format!("-N {}", job.name), NAME),
        directive(
            format!("-l select={}{chunk}{gpus}", job.nodes),
            match by_mpiexec {
                true => "One chunk per node.",
                false => {
                    "One chunk per node: `regatta launch` starts one agent per node, which starts its ranks."
                }
            },
        ),
        directive("-l place=scatter:excl", "Whole nodes, each chunk on its own."),
    ];
    list.extend(job.time.map(|limit| directive(format!("-l walltime={}", limit.clock()), TIME)));
    list.extend(job.account.iter().map(|name| directive(format!("-A {name}"), ACCOUNT)));
    let queue = queue(job, site, BatchScheduler::Pbs);
    list.extend(queue.map(|name| directive(format!("-q {name}"), "The queue.")));
    let after = dependencies(&job.after);
    if !after.is_empty() {
        list.push(directive(format!("-W depend={}", after.join(",")), AFTER));
    }
    list.push(match (job.requeue, job.array) {
        (true, _) => directive("-r y", "Back into the queue after a node failure or preemption."),
        (false, Some(_)) => directive("-r y", "PBS refuses other arrays."),
        (false, None) => directive("-r n", "A failed job is not repeated."),
    });
    list.push(directive("-V", "The environment of the submission, as with Slurm and Flux."));
    list.push(directive("-j oe", "Both output streams in one file,"));
    list.push(directive("-k doe", "written while the job runs."));
    list.extend(job.array.map(|array| directive(format!("-J {array}"), ARRAY)));
    let output = if job.array.is_some() { "job-^array_index^.out" } else { "job.out" };
    let why = if by_mpiexec { "Output of the ranks, merged." } else { OUTPUT };
    list.push(directive(format!("-o {}/{output}", job.job_dir), why));
    list
}

fn flux(job: &BatchJob, site: &Profile) -> Vec<Directive> {
    let mut list = vec![
        directive(format!("--job-name={}", job.name), NAME),
        directive(format!("--nodes={}", job.nodes), NODES),
        directive(
            "--exclusive",
            "Whole nodes with all their GPUs: ranks are bound to cores, GPUs and NICs of the node.",
        ),
    ];
    let limit = job.time.map(|limit| format!("--time-limit={}s", limit.seconds()));
    list.extend(limit.map(|option| directive(option, TIME)));
    let bank = job.account.iter().map(|name| format!("--bank={name}"));
    list.extend(bank.map(|option| directive(option, "The bank that is charged.")));
    let queue = queue(job, site, BatchScheduler::Flux);
    list.extend(queue.map(|name| directive(format!("--queue={name}"), "The queue.")));
    for after in &job.after {
        let kind = if after.must_succeed { "afterok" } else { "afterany" };
        list.push(directive(format!("--dependency={kind}:{}", after.job), AFTER));
    }
    if job.signal_before > 0 && job.time.is_some() {
        let why = "TERM before the time limit, so that the ranks can save.";
        list.push(directive(format!("--signal=TERM@{}s", job.signal_before), why));
    }
    list.push(directive(format!("--output={}/job.out", job.job_dir), OUTPUT));
    list
}

#[cfg(test)]
mod tests {
    use super::option_name;

    #[test]
    fn options_are_replaced_by_name() {
        assert_eq!(option_name("--qos=debug"), "--qos");
        assert_eq!(option_name("--exclusive"), "--exclusive");
        assert_eq!(option_name("-l walltime=1:00:00"), "-l walltime");
        assert_eq!(option_name("-q debug"), "-q");
    }
}
