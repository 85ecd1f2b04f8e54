//! `regatta jobs`: the state of the jobs that `regatta submit` submitted.

mod array;
mod query;
mod table;
mod tasks;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use regatta_discover::job_state::{JobState, JobStatus};
use regatta_model::{Document, document};
use regatta_observe::read::{Progress, last_launch, progress, read_document};
use regatta_place::batch::{BatchScheduler, RunDir, RunKind};
use serde::{Deserialize, Serialize};

use super::submit::record::{self, JobRecord};
use crate::args::jobs::JobsArgs;
use crate::output;

/// A job with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct JobEntry {
    #[serde(flatten)]
    record: JobRecord,
    #[serde(flatten)]
    status: EntryStatus,
    /// The tasks of an array.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<TaskEntry>,
}

/// A task of an array with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TaskEntry {
    /// ID by the scheduler: `12345_3`.
    id: String,
    index: u32,
    #[serde(flatten)]
    status: EntryStatus,
}

/// What is known of a job or a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct EntryStatus {
    /// `None`: not known.
    state: Option<JobState>,
    /// Why it waits, how it ended, or why its state is not known.
    reason: Option<String>,
    /// Seconds since its start.
    elapsed: Option<u64>,
    /// Time limit in seconds.
    limit: Option<u64>,
    exit_code: Option<i32>,
    /// The folder of its latest run.
    run_folder: Option<PathBuf>,
    /// Progress of a training.
    progress: Option<Progress>,
}

impl EntryStatus {
    /// The status by the scheduler or the run folder; `unknown` is the reason without one.
    fn new(
        status: Option<JobStatus>,
        run_folder: Option<PathBuf>,
        unknown: impl FnOnce() -> Option<String>,
    ) -> Self {
        Self {
            state: status.as_ref().map(|status| status.state),
            reason: status.as_ref().map_or_else(unknown, |status| status.reason.clone()),
            elapsed: status.as_ref().and_then(|status| status.elapsed),
            limit: status.as_ref().and_then(|status| status.limit),
            exit_code: status.as_ref().and_then(|status| status.exit_code),
            progress: run_folder.as_deref().and_then(progress),
            run_folder,
        }
    }
}

/// The output of `--json`.
#[derive(Debug, Serialize, Deserialize)]
struct JobList {
    jobs: Vec<JobEntry>,
}

impl Document for JobList {
    const KIND: &'static str = "jobs";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta jobs --json";
}

/// Runs the command.
pub fn run(args: &JobsArgs) -> Result<()> {
    let mut records = select(read_records(), &args.jobs)?;
    if !args.all && args.jobs.is_empty() {
        records.truncate(args.limit);
    }
    let jobs = entries(records);
    if args.json {
        return output::print(&document::to_json(&JobList { jobs })?);
    }
    if jobs.is_empty() {
        output::eprint("no jobs: `regatta submit` submits one\n");
        return Ok(());
    }
    // One line per array, or one per task of an array that is named.
    output::print(&table::table(&jobs, !args.jobs.is_empty()))
}

/// All records of the state folder, newest first. Unreadable ones, as of another version, are noted.
fn read_records() -> Vec<JobRecord> {
    let folder = record::state_folder();
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    let files = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let read = |file: PathBuf| {
        read_document(&file).unwrap_or_else(|error| {
            output::note(&error.to_string());
            None
        })
    };
    let mut records: Vec<JobRecord> = files.filter_map(read).collect();
    records.sort_by(|a, b| b.submitted.cmp(&a.submitted).then_with(|| b.id.cmp(&a.id)));
    records
}

/// The records that the words name, or all.
fn select(records: Vec<JobRecord>, words: &[String]) -> Result<Vec<JobRecord>> {
    let names = |record: &JobRecord, word: &str| {
        let number = record.id.split('.').next().unwrap_or_default();
        let short = number == word || number.strip_suffix("[]") == Some(word);
        let folder = std::path::absolute(word).is_ok_and(|path| record.folder == path);
        let task = tasks::task_index(record.scheduler, &record.id, word).is_some();
        record.id == word || short || task || record.name == word || folder
    };
    let unknown = words.iter().find(|word| !records.iter().any(|record| names(record, word)));
    if let Some(word) = unknown {
        bail!("no submitted job is {word:?}; `regatta jobs --all` lists them");
    }
    let is_named = |record: &JobRecord| words.iter().any(|word| names(record, word));
    Ok(records.into_iter().filter(|record| words.is_empty() || is_named(record)).collect())
}

/// The records with their states. Final states are kept with the record.
fn entries(mut records: Vec<JobRecord>) -> Vec<JobEntry> {
    let mut found = query::Answers::default();
    for scheduler in BatchScheduler::ALL {
        let open = |r: &&JobRecord| r.scheduler == scheduler && r.ended.is_none();
        let ids: Vec<&str> = records.iter().filter(open).map(|record| record.id.as_str()).collect();
        if !ids.is_empty() {
            found.ask(scheduler, &ids);
        }
    }
    for record in records.iter_mut().filter(|record| record.ended.is_none()) {
        if let Some(array) = record.array {
            array::record_ended_tasks(record, array, &found);
            continue;
        }
        let status = found.status(record);
        if let Some(status) = status.filter(|status| status.state.is_final()) {
            record.set_ended(&status.clone());
        }
    }
    records.into_iter().map(|record| entry(record, &found)).collect()
}

fn entry(record: JobRecord, found: &query::Answers) -> JobEntry {
    if let Some(array) = record.array {
        return array::array_entry(record, array, found);
    }
    let run_folder = run_folder(&record, &record.folder);
    let by_scheduler = record.ended.clone().or_else(|| found.status(&record).cloned());
    let by_run = || run_folder.as_deref().and_then(|run| status_by_run(&record, run));
    let status = by_scheduler.or_else(by_run);
    let unknown = || Some(found.problem(record.scheduler));
    let status = EntryStatus::new(status, run_folder, unknown);
    JobEntry { record, status, tasks: Vec::new() }
}

/// The state of a job whose run has ended, by the result in its run folder.
fn status_by_run(record: &JobRecord, run: &Path) -> Option<JobStatus> {
    let result = last_launch(run).result().ok()??;
    let state = if result.exit_code == 0 { JobState::Completed } else { JobState::Failed };
    Some(JobStatus {
        id: record.id.clone(),
        name: Some(record.name.clone()),
        state,
        reason: Some(format!("by its run folder: {}", result.reason)),
        elapsed: Some(result.seconds as u64),
        limit: None,
        exit_code: Some(i32::from(result.exit_code)),
    })
}

/// The folder of the latest run of a job, or of a task, in its folder; if there is one.
fn run_folder(record: &JobRecord, parent: &Path) -> Option<PathBuf> {
    let folder = match (&record.run_dir, RunKind::of(&record.command)) {
        (Some(named), _) => named.clone(),
        (None, RunKind::Train) => parent.join(RunDir::RESUMED_NAME),
        (None, _) => {
            let entries = std::fs::read_dir(parent).ok()?.flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            parent.join(latest_run(names)?)
        }
    };
    folder.is_dir().then_some(folder)
}

/// The name of the latest run: `run-10` follows `run-9`.
fn latest_run(names: impl Iterator<Item = String>) -> Option<String> {
    let number = |name: &String| name.strip_prefix(RunDir::NUMBERED_PREFIX)?.parse::<u32>().ok();
    names.filter(|name| number(name).is_some()).max_by_key(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn record(id: &str, name: &str, submitted: u64) -> JobRecord {
        JobRecord {
            id: id.to_owned(),
            scheduler: BatchScheduler::Slurm,
            name: name.to_owned(),
            site: "lumi-g".to_owned(),
            host: "uan01".to_owned(),
            submitted,
            nodes: 2,
            script: "/home/jobs/train/job.sh".into(),
            folder: format!("/home/jobs/{name}").into(),
            run_dir: None,
            command: vec!["python".to_owned(), "train.py".to_owned()],
            array: None,
            ended_tasks: Default::default(),
            ended: None,
        }
    }

    #[test]
    fn jobs_are_selected_by_id_name_or_folder() {
        let records = vec![record("12.server", "train", 2), record("7", "eval", 1)];
        let selected = |words: &[&str]| -> Vec<String> {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let found = select(records.clone(), &words).unwrap();
            found.into_iter().map(|record| record.name).collect()
        };
        assert_eq!(selected(&[]), ["train", "eval"]);
        assert_eq!(selected(&["12"]), ["train"]);
        assert_eq!(selected(&["7_3"]), ["eval"]);
        assert_eq!(selected(&["12.server"]), ["train"]);
        assert_eq!(selected(&["eval"]), ["eval"]);
        assert_eq!(selected(&["/home/jobs/eval", "12"]), ["train", "eval"]);
        let error = select(records.clone(), &["13".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("\"13\""), "{error}");
    }

    #[test]
    fn runs_are_ordered_by_number() {
        let latest = |names: &[&str]| latest_run(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(latest(&["run-9", "run-10", "job.sh", "run-x"]).as_deref(), Some("run-10"));
        assert_eq!(latest(&["job.sh"]), None);
    }

    #[test]
    fn records_round_trip() {
        let mut record = record("7", "a", 1);
        let text = document::to_json(&record).unwrap();
        assert!(text.contains("\"format\": \"regatta-job/1\""), "{text}");
        assert_eq!(document::from_json::<JobRecord>(&text).unwrap(), record);
        record.ended = Some(JobStatus {
            id: "7".to_owned(),
            name: None,
            state: JobState::TimedOut,
            reason: None,
            elapsed: Some(1),
            limit: None,
            exit_code: None,
        });
        let text = document::to_json(&record).unwrap();
        assert_eq!(document::from_json::<JobRecord>(&text).unwrap(), record);
    }
}
