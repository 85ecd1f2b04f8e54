//! Asks schedulers for the states of jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use regatta_discover::job_state::{
    JobStatus, SACCT_FORMAT, SQUEUE_FORMAT, parse_flux_jobs, parse_qstat, parse_sacct, parse_squeue,
};
use regatta_launch::subprocess::capture;
use regatta_place::batch::BatchScheduler;

use super::{JobRecord, tasks};

/// Limit on each query.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What the schedulers answered.
#[derive(Debug, Default)]
pub struct Answers {
    jobs: BTreeMap<(BatchScheduler, String), JobStatus>,
    /// The last failure of each scheduler's commands.
    problems: BTreeMap<BatchScheduler, String>,
}

impl Answers {
    /// Asks for the states of these jobs.
    pub fn ask(&mut self, scheduler: BatchScheduler, ids: &[&str]) {
        match scheduler {
            BatchScheduler::Slurm => self.ask_slurm(ids),
            BatchScheduler::Pbs => self.ask_pbs(ids),
            BatchScheduler::Flux => ids.iter().for_each(|id| self.ask_flux(id)),
        }
    }

    /// The state of a job. Of another cluster, a job may have the same ID, but rarely the same name.
    pub fn status(&self, record: &JobRecord) -> Option<&JobStatus> {
        let status = self.jobs.get(&(record.scheduler, record.id.clone()))?;
        let same_name = status.name.as_ref().is_none_or(|name| *name == record.name);
        same_name.then_some(status)
    }

    /// The states of an array's tasks by their index.
    pub fn tasks(&self, record: &JobRecord) -> BTreeMap<u32, &JobStatus> {
        let is_same = |status: &JobStatus| status.name.as_ref().is_none_or(|n| *n == record.name);
        let own = self
            .jobs
            .iter()
            .filter(|((scheduler, _), status)| *scheduler == record.scheduler && is_same(status));
        let index = |id: &str| tasks::task_index(record.scheduler, &record.id, id);
        own.filter_map(|((_, id), status)| Some((index(id)?, status))).collect()
    }

    /// Why the state of a job is not known.
    pub fn problem(&self, scheduler: BatchScheduler) -> String {
        let unknown = || format!("{scheduler} here does not know the job");
        self.problems.get(&scheduler).cloned().unwrap_or_else(unknown)
    }

    /// The controller knows jobs for minutes after their end, the accounting database for longer.
    fn ask_slurm(&mut self, ids: &[&str]) {
        let jobs = format!("--jobs={}", ids.join(","));
        let format = format!("--format={SQUEUE_FORMAT}");
        // One line per task of an array.
        let squeue = ["--array", "--noheader", "--states=all", &format, &jobs];
        self.run(BatchScheduler::Slurm, "squeue", &squeue, parse_squeue);
        let is_missing =
            |id: &&&str| !self.jobs.contains_key(&(BatchScheduler::Slurm, (**id).to_owned()));
        let missing: Vec<&str> = ids.iter().filter(is_missing).copied().collect();
        if !missing.is_empty() {
            let jobs = format!("--jobs={}", missing.join(","));
            let format = format!("--format={SACCT_FORMAT}");
            let sacct = ["-X", "--noheader", "--parsable2", &format, &jobs];
            self.run(BatchScheduler::Slurm, "sacct", &sacct, parse_sacct);
        }
    }

    /// JSON where it is available, else text. Both commands print the known jobs if others are not.
    fn ask_pbs(&mut self, ids: &[&str]) {
        let has_array = ids.iter().any(|id| id.contains("[]"));
        let options = if has_array { &["-t", "-x", "-f"][..] } else { &["-x", "-f"] };
        let json = [options, &["-F", "json"], ids].concat();
        if self.run(BatchScheduler::Pbs, "qstat", &json, parse_qstat) == 0 {
            let text = [options, ids].concat();
            self.run(BatchScheduler::Pbs, "qstat", &text, parse_qstat);
        }
    }

    /// One job at a time: versions differ in how they print the IDs of several.
    fn ask_flux(&mut self, id: &str) {
        let only = |text: &str| -> Vec<JobStatus> {
            let jobs = parse_flux_jobs(text).into_iter().take(1);
            jobs.map(|job| JobStatus { id: id.to_owned(), ..job }).collect()
        };
        self.run(BatchScheduler::Flux, "flux", &["jobs", "--json", id], only);
    }

    /// Runs a command, and returns how many jobs it knows.
    fn run(
        &mut self,
        scheduler: BatchScheduler,
        program: &str,
        args: &[&str],
        parse: impl Fn(&str) -> Vec<JobStatus>,
    ) -> usize {
        let output = match capture(program, args, TIMEOUT) {
            Ok(output) => output,
            Err(error) => {
                self.problems.entry(scheduler).or_insert_with(|| format!("{program}: {error}"));
                return 0;
            }
        };
        let jobs = parse(&output.stdout);
        if !output.end.is_success() {
            let said = output.stderr.lines().next().unwrap_or_default().trim();
            self.problems.insert(scheduler, format!("{program}: {said}"));
        }
        let count = jobs.len();
        for job in jobs {
            // The first answer is the newest: the accounting database is behind the controller.
            self.jobs.entry((scheduler, job.id.clone())).or_insert(job);
        }
        count
    }
}
