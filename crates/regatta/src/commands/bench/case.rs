//! One case of a sweep, scan or tuning run: a job with its own ranks, variables and run folder.

use std::path::{Path, PathBuf};

use regatta_launch::process::EnvSetting;
use regatta_measure::request::BenchRequest;
use regatta_measure::write::TableLayout;
use regatta_model::BenchResult;
use regatta_model::run_folder::{BENCH_LOCK, BENCH_RESULT};
use regatta_train::lock_file::{LockResult, lock_file};

use super::files;
use super::parent::BenchLaunch;
use super::reporter::{OutputFormat, Reporter};
use crate::commands::reporter_output::ReporterOutput;
use crate::output;

/// A case.
pub struct BenchCase {
    pub folder: PathBuf,
    pub label: String,
    /// Variables of the ranks, whatever the site and the user have set.
    pub environment: Vec<EnvSetting>,
    pub launch: BenchLaunch,
}

impl BenchCase {
    /// Path of its result.
    pub fn out(&self) -> PathBuf {
        self.folder.join(BENCH_RESULT)
    }

    /// Its saved result.
    pub fn result(&self) -> Option<BenchResult> {
        files::load(&self.out()).ok()?.pop()
    }

    /// Runs it, and reports why it cannot be launched; returns its exit status.
    pub fn run(&self, request: &BenchRequest, format: OutputFormat, layout: TableLayout) -> u8 {
        let mut launch = self.launch.clone();
        launch.options.job.rank_env.set = self.environment.clone();
        let request = BenchRequest { label: Some(self.label.clone()), ..request.clone() };
        let printer = ReporterOutput::queued();
        let reporter = Reporter::of_case(format, layout, Some(self.out()), printer);
        launch.run(&request, &self.folder, reporter).unwrap_or_else(|error| {
            output::error(&output::one_line(&error));
            1
        })
    }
}

/// Locks the folder of a sweep or scan, for `regatta runs`. Without a lock the runs go on.
pub fn lock(folder: &Path) -> Option<LockResult> {
    std::fs::create_dir_all(folder).ok()?;
    lock_file(&folder.join(BENCH_LOCK)).ok()
}
