//! The table of jobs.

use std::path::Path;

use regatta_discover::job_state::JobState;
use regatta_draw::escapes::keep_colours;
use regatta_draw::table;
use regatta_observe::read::Progress;

use super::{EntryStatus, JobEntry, JobRecord, TaskEntry};
use crate::cli::{ERROR, FAINT, GOOD, WARNING};

/// One line per job, and per task of an array if `with_tasks`.
pub fn table(jobs: &[JobEntry], with_tasks: bool) -> String {
    let mut rows = Vec::new();
    for JobEntry { record, status, tasks } in jobs {
        let run = status.run_folder.as_deref().unwrap_or(&record.folder);
        rows.push(row(&record.id, record, status, Some(run)));
        let shown = if with_tasks { tasks.as_slice() } else { &[] };
        let task = |TaskEntry { id, status, .. }: &TaskEntry| {
            row(id, record, status, status.run_folder.as_deref())
        };
        rows.extend(shown.iter().map(task));
    }
    let header = ["job", "name", "state", "nodes", "elapsed", "limit", "progress", "run", "reason"];
    table::with_dim_header(&header, &rows, &[0, 1, 2, 6, 7, 8])
}

/// A job or a task.
fn row(id: &str, record: &JobRecord, status: &EntryStatus, run: Option<&Path>) -> Vec<String> {
    vec![
        id.to_owned(),
        record.name.clone(),
        colored(status.state),
        record.nodes.to_string(),
        shown_clock(status.elapsed),
        shown_clock(status.limit),
        status.progress.as_ref().map_or("-".to_owned(), format_progress),
        run.map_or("-".to_owned(), shown_path),
        shown_reason(status.exit_code, status.reason.as_deref()),
    ]
}

fn shown_clock(seconds: Option<u64>) -> String {
    seconds.map_or("-".to_owned(), format_clock)
}

/// The exit code, unless it is 0, and the reason.
fn shown_reason(exit_code: Option<i32>, reason: Option<&str>) -> String {
    let code = exit_code.filter(|code| *code != 0).map(|code| format!("exit code {code}"));
    let parts: Vec<&str> = code.as_deref().into_iter().chain(reason).collect();
    keep_colours(&parts.join(", "))
}

/// The state in its colour.
fn colored(state: Option<JobState>) -> String {
    let style = match state {
        Some(JobState::Running | JobState::Completed) => GOOD,
        Some(JobState::Failed | JobState::TimedOut) => ERROR,
        Some(JobState::Suspended | JobState::Cancelled) => WARNING,
        Some(JobState::Pending) | None => FAINT,
    };
    format!("{style}{}{style:#}", state.map_or("unknown", JobState::name))
}

/// `1:05:00`, or with days `2-01:05:00`, as Slurm shows it.
fn format_clock(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let rest = format!("{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    if days == 0 { format!("{hours}:{rest}") } else { format!("{days}-{hours:02}:{rest}") }
}

fn format_progress(progress: &Progress) -> String {
    let steps = progress.steps.map(|steps| format!("/{steps}")).unwrap_or_default();
    let loss = progress.loss.map(|loss| format!(", loss {loss:.4}")).unwrap_or_default();
    format!("step {}{steps}{loss}", progress.step)
}

/// A path relative to the current folder where that is shorter.
fn shown_path(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let relative = here.as_ref().and_then(|here| path.strip_prefix(here).ok());
    relative.unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    #[test]
    fn table_shows_state_time_progress_and_reason() {
        let job = |record: JobRecord, state, reason: Option<&str>| {
            let status = EntryStatus {
                state,
                reason: reason.map(str::to_owned),
                elapsed: Some(3723),
                limit: Some(2 * 86_400),
                exit_code: None,
                run_folder: Some(record.folder.join("run-1")),
                progress: Some(Progress { step: 10, steps: Some(20), loss: Some(1.5) }),
            };
            JobEntry { record, status, tasks: Vec::new() }
        };
        let mut pending = job(record("8", "b", 1), Some(JobState::Pending), Some("Priority"));
        pending.status.elapsed = None;
        (pending.status.progress, pending.status.run_folder) = (None, None);
        let unknown = job(record("9", "c", 1), None, Some("sacct failed"));
        let mut failed = job(record("5", "d", 0), Some(JobState::Failed), None);
        failed.status.exit_code = Some(75);
        let jobs =
            [job(record("7", "a", 2), Some(JobState::Running), None), pending, unknown, failed];
        let text = anstream::adapter::strip_str(&table(&jobs, false)).to_string();
        let expected = "\
job  name  state    nodes  elapsed       limit  progress                run                 reason
7    a     running      2  1:02:03  2-00:00:00  step 10/20, loss 1.5000  /home/jobs/a/run-1
8    b     pending      2        -  2-00:00:00  -                        /home/jobs/b        Priority
9    c     unknown      2  1:02:03  2-00:00:00  step 10/20, loss 1.5000  /home/jobs/c/run-1  sacct failed
5    d     failed       2  1:02:03  2-00:00:00  step 10/20, loss 1.5000  /home/jobs/d/run-1  exit code 75
";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(expected), "{text}");
    }
}
