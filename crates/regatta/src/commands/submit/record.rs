//! The record of a submitted job: in its folder, and in the user's state folder, where `regatta jobs`
//! finds it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use regatta_comm::bootstrap::host_name;
use regatta_discover::job_state::JobStatus;
use regatta_model::run_folder::run_id;
use regatta_model::{Document, document};
use regatta_place::batch::{BatchJob, BatchScheduler, JobArray};
use regatta_place::site_profile::Profile;
use serde::{Deserialize, Serialize};

use crate::output;

/// Most tasks of an array whose ends are recorded, so that records stay small.
const MAX_RECORDED_TASKS: u32 = 10_000;

/// Name of the record in the job folder.
const FILE: &str = "job.json";

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// ID by its scheduler.
    pub id: String,
    pub scheduler: BatchScheduler,
    pub name: String,
    /// Name of the site profile; empty if the site is not known.
    pub site: String,
    /// Host that it was submitted on.
    pub host: String,
    /// Seconds since the Unix epoch.
    pub submitted: u64,
    pub nodes: u32,
    /// Path of the script.
    pub script: PathBuf,
    /// Path of the job folder.
    pub folder: PathBuf,
    /// Run folder that the command names; `None`: in the job folder.
    pub run_dir: Option<PathBuf>,
    pub command: Vec<String>,
    /// Its tasks, if it is an array.
    #[serde(default)]
    pub array: Option<JobArray>,
    /// The last states of the tasks that have ended, by index.
    #[serde(default)]
    pub ended_tasks: BTreeMap<u32, JobStatus>,
    /// Its last state, once it has ended: schedulers forget jobs.
    #[serde(default)]
    pub ended: Option<JobStatus>,
}

impl Document for JobRecord {
    const KIND: &'static str = "job";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta submit";
}

impl JobRecord {
    /// The record of a job that was submitted now.
    pub fn new(
        id: String,
        scheduler: BatchScheduler,
        job: &BatchJob,
        site: &Profile,
        script: &Path,
        run_dir: Option<PathBuf>,
    ) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id,
            scheduler,
            name: job.name.clone(),
            site: site.name.clone(),
            host: host_name(),
            submitted: since.as_secs(),
            nodes: job.nodes,
            script: script.to_owned(),
            folder: script.parent().unwrap_or(script).to_owned(),
            run_dir,
            command: job.command.clone(),
            array: job.array,
            ended_tasks: BTreeMap::new(),
            ended: None,
        }
    }

    /// Writes the record to the job folder and the state folder. The job is submitted: a failure is
    /// reported, but is no error.
    pub fn save(&self) {
        if let Err(error) = self.write(&self.folder.join(FILE)) {
            output::note(&format!("{error:#}"));
        }
        match self.state_file() {
            Some(file) => self.save_to(&file),
            None => output::note("`regatta jobs` will not list this job: HOME is not set"),
        }
    }

    fn save_to(&self, file: &Path) {
        let folder = file.parent().unwrap_or(file);
        let created = std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()));
        if let Err(error) = created.and_then(|()| self.write(file)) {
            output::note(&format!("`regatta jobs` will not list this job: {error:#}"));
        }
    }

    /// Records how the job ended. Without it, the scheduler is asked again.
    pub fn set_ended(&mut self, status: &JobStatus) {
        self.ended = Some(status.clone());
        self.update_state_file();
    }

    /// Records how tasks of the array ended.
    pub fn add_ended_tasks(&mut self, tasks: BTreeMap<u32, JobStatus>) {
        let fits = self.array.is_some_and(|array| array.count() <= MAX_RECORDED_TASKS);
        if fits && !tasks.is_empty() {
            self.ended_tasks.extend(tasks);
            self.update_state_file();
        }
    }

    fn update_state_file(&self) {
        if let Some(file) = self.state_file().filter(|file| file.exists()) {
            let _ = self.write(&file);
        }
    }

    fn write(&self, file: &Path) -> Result<()> {
        output::write_file(file, &document::to_json(self)?)
    }

    /// The record's file in the state folder.
    fn state_file(&self) -> Option<PathBuf> {
        let time = run_id(UNIX_EPOCH + std::time::Duration::from_secs(self.submitted), 0);
        let time = time.trim_end_matches("-0");
        let id = self.id.replace('/', "_");
        let scheduler = self.scheduler.title().to_lowercase();
        Some(state_folder()?.join(format!("{time}-{scheduler}-{id}.json")))
    }
}

/// `regatta/jobs` in the user's state folder.
pub fn state_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = variable("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let in_home = || variable("HOME").map(|home| Path::new(&home).join(".local/state"));
    Some(state.or_else(in_home)?.join("regatta/jobs"))
}
