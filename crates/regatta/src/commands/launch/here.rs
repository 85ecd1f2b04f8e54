//! Ranks on this machine.

use anyhow::{Context, Result};
use regatta_launch::crew::Crew;
use regatta_launch::folder::LogFolder;
use regatta_launch::job::Outcome;
use regatta_launch::local::{LocalCrew, Watch};
use regatta_launch::port::{self, Reserved};
use regatta_launch::process::RankSpec;
use regatta_launch::roster::Verdict;
use regatta_launch::secret_file::{self, SecretFile};
use regatta_place::rendezvous;
use regatta_wire::secret::Secret;

use super::Ground;
use super::ranks::{Planned, planned};
use crate::cli::LaunchArgs;
use crate::plan::Survey;
use crate::surroundings;

/// This machine.
pub struct Here<'a> {
    args: &'a LaunchArgs,
    survey: Survey,
    run: String,
    logs: Option<LogFolder>,
    hosts: Vec<String>,
    crew: Option<LocalCrew>,
    /// What the ranks know each other by.
    secret: Option<SecretFile>,
    /// The port that rank 0 is to listen on: nobody else gets it while we live.
    port: Option<Reserved>,
}

impl<'a> Here<'a> {
    /// This machine, for a run.
    pub fn new(args: &'a LaunchArgs, survey: Survey, run: &str, logs: Option<LogFolder>) -> Self {
        let hosts = survey.allocation.nodes.iter().map(|n| n.host.clone()).collect();
        let run = run.to_owned();
        Self { args, survey, run, logs, hosts, crew: None, secret: None, port: None }
    }
}

impl Here<'_> {
    /// Gives ranks what they know each other by. Without it they cannot connect to each other
    /// through us, but may well run.
    fn share_secret(&mut self, specs: &mut [RankSpec]) {
        if self.secret.is_none() {
            let job = Secret::generate();
            let write = |job| SecretFile::write(&std::env::temp_dir(), &self.run, &job);
            self.secret = job.and_then(write).ok();
        }
        let Some(file) = &self.secret else { return };
        let path = file.path().to_string_lossy().into_owned();
        let setting = (secret_file::VARIABLE.to_owned(), Some(path));
        specs.iter_mut().for_each(|spec| spec.env.push(setting.clone()));
    }
}

impl Ground for Here<'_> {
    fn plan(&mut self, attempt: u32) -> Result<Planned> {
        let plan = self.survey.clone().plan(&self.args.source, &self.args.job)?;
        // As a rank other than 0 would: whether the port is free is looked at here.
        let mut meet = surroundings::meet(&self.args.choices, &plan, 1)?;
        if self.args.choices.master_port.is_none() {
            self.port = None;
            let port = port::reserve(rendezvous::ports_from(meet.port))
                .context("no port is free on this node: pass --master-port")?;
            meet.port = port.port();
            meet.port_why = "free on this node when the job started".to_owned();
            self.port = Some(port);
        }
        planned(self.args, plan, meet, (&self.run, attempt))
    }

    fn start(&mut self, planned: &Planned, attempt: u32) -> Result<&mut dyn Crew> {
        let mut specs: Vec<_> = planned.ranks.iter().map(|r| r.spec.clone()).collect();
        self.share_secret(&mut specs);
        let progress = self.args.hang_after.is_some();
        let watch = Watch { logs: self.logs.clone(), attempt, progress, notify: None };
        let crew = LocalCrew::start(&specs, &watch);
        Ok(self.crew.insert(crew.with_context(|| self.hosts.join(","))?))
    }

    fn judge(&mut self, _: &Outcome) -> Verdict {
        Verdict::Same
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn end(self: Box<Self>) {}
}
