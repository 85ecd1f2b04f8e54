//! Jobs that cannot be submitted: missing options, values that would break a script, and what a
//! scheduler does not support.

use super::{
    BatchDirective, BatchError, BatchJob, BatchScheduler, CHECK_NET, NET_PLUGIN, PROFILE,
    REQUIRE_NET, Requirement, RunDir, TUNER, body, mpiexec, site_title,
};
use crate::site_profile::Profile;

/// Whether a job can be submitted.
pub(super) fn check(
    scheduler: BatchScheduler,
    job: &BatchJob,
    site: &Profile,
) -> Result<(), BatchError> {
    check_values(job)?;
    check_profile(site)?;
    let missing = missing_options(scheduler, job, site);
    if !missing.is_empty() {
        return Err(BatchError::Missing { site: site_title(site).to_owned(), missing });
    }
    if let Some(limit) = job.time
        && u64::from(job.signal_before) >= limit.seconds()
    {
        let (before, limit) = (job.signal_before, limit.seconds());
        return Err(BatchError::SignalBeforeStart { before, limit });
    }
    if scheduler == BatchScheduler::Flux && job.requeue {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "does not put jobs back into the queue",
            fix: "remove --requeue and submit a second job with --after-any JOBID",
        });
    }
    check_array(scheduler, job)?;
    let checks_net = job.launch_options.iter().any(|o| o == CHECK_NET || o == REQUIRE_NET);
    if checks_net && mpiexec::is_needed(scheduler, job, site) {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "starts the ranks by mpiexec at this site, for oneCCL, which logs nothing that \
                   --check-net reads",
            fix: "remove --check-net and --require-net",
        });
    }
    if let Some(option) = plugin_option(job)
        && mpiexec::is_needed(scheduler, job, site)
    {
        return Err(BatchError::PluginForOneCcl { scheduler, option });
    }
    let is_flux_directive = |line: &str| {
        let tag = line.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        tag.starts_with("flux:") || tag.starts_with("FLUX:")
    };
    let hides_directive = |word: &&String| word.lines().skip(1).any(is_flux_directive);
    match job.command.iter().find(hides_directive) {
        Some(word) if scheduler == BatchScheduler::Flux => {
            Err(BatchError::ArgumentIsDirective(word.clone()))
        }
        _ => Ok(()),
    }
}

/// The first option that loads a plug-in of NCCL.
fn plugin_option(job: &BatchJob) -> Option<&'static str> {
    let is_given = |name: &&str| {
        job.launch_options.iter().any(|option| option.split('=').next() == Some(*name))
    };
    [PROFILE, TUNER, NET_PLUGIN].into_iter().find(is_given)
}

fn check_array(scheduler: BatchScheduler, job: &BatchJob) -> Result<(), BatchError> {
    let Some(array) = job.array else { return Ok(()) };
    if scheduler == BatchScheduler::Flux {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "has no job arrays",
            fix: "remove --array and submit one job per task, as in a loop over --name",
        });
    }
    if scheduler == BatchScheduler::Pbs && array.count() == 1 {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "needs at least two tasks in an array",
            fix: "remove --array",
        });
    }
    match body::run_dir(&job.command) {
        RunDir::Named(folder) => Err(BatchError::SharedRunDir(folder)),
        RunDir::Numbered | RunDir::Resumed | RunDir::Unknown => Ok(()),
    }
}

/// The required options that are missing, each with what it is for.
fn missing_options(scheduler: BatchScheduler, job: &BatchJob, site: &Profile) -> Vec<String> {
    let is_missing = |requirement: &&Requirement| match requirement {
        Requirement::Account => job.account.is_none(),
        Requirement::Queue => job.queue.is_none() && site.batch.queue.is_none(),
        Requirement::Time => job.time.is_none(),
    };
    // The site's options are those of its own scheduler.
    let own = site.batch.scheduler.is_none_or(|own| own == scheduler);
    let required = site.batch.require.iter().filter(|_| own);
    required.filter(is_missing).map(|requirement| requirement.hint().to_owned()).collect()
}

/// Values in directives have no quotes: schedulers disagree on how they are read.
fn check_values(job: &BatchJob) -> Result<(), BatchError> {
    let word = "expected letters, digits and any of _ . - + : , / @ =";
    if !is_name(&job.name) {
        let expected = "expected a letter or digit, then letters, digits and any of _ . - +";
        return bad("--name", &job.name, expected);
    }
    for (option, value) in [("--account", &job.account), ("--partition", &job.queue)] {
        if let Some(value) = value.as_ref().filter(|value| !is_word(value)) {
            return bad(option, value, word);
        }
    }
    if let Some(after) = job.after.iter().find(|after| !is_job_id(&after.job)) {
        return bad("--after", &after.job, "expected a job ID");
    }
    if !is_word(&job.job_dir) || job.job_dir.starts_with('-') || job.job_dir.contains(':') {
        return bad(
            "--job-dir",
            &job.job_dir,
            "expected letters, digits and any of _ . - + , / @ =",
        );
    }
    if let Some(directive) = job.directives.iter().find(|d| !is_directive(d)) {
        let expected = "expected an option of the scheduler, as in --directive=--qos=debug";
        return bad("--directive", directive, expected);
    }
    if let Some(module) = job.modules.iter().find(|m| m.starts_with('-') || m.is_empty()) {
        return bad("--module", module, "expected the name of a module");
    }
    if let Some(image) = job.container.iter().find(|c| c.starts_with('-') || c.is_empty()) {
        return bad("--container", image, "expected an image");
    }
    if job.command.first().is_none_or(String::is_empty) {
        Err(BatchError::NoCommand)
    } else {
        Ok(())
    }
}

/// The profile may be a user's file.
fn check_profile(site: &Profile) -> Result<(), BatchError> {
    let batch = &site.batch;
    let expected = "expected an option of the scheduler with a reason, each on one line";
    let is_good = |d: &BatchDirective| is_directive(&d.option) && !d.why.contains(char::is_control);
    if let Some(directive) = batch.directives.iter().find(|d| !is_good(d)) {
        return bad("directives of the site profile", &directive.option, expected);
    }
    if let Some(option) = batch.container_options.iter().flatten().find(|o| !is_directive(o)) {
        return bad("container_options of the site profile", option, "expected an option");
    }
    let words =
        [("queue of the site profile", &batch.queue), ("chunk of the site profile", &batch.chunk)];
    for (option, value) in words {
        if let Some(value) = value.as_ref().filter(|value| !is_word(value)) {
            return bad(option, value, "expected a single word");
        }
    }
    match site_title(site).contains(char::is_control) {
        true => bad("title of the site profile", site_title(site), "expected a single line"),
        false => Ok(()),
    }
}

fn bad(option: &'static str, value: &str, expected: &'static str) -> Result<(), BatchError> {
    Err(BatchError::BadValue { option, value: value.to_owned(), expected })
}

/// Whether a text is an option of a scheduler on one line.
fn is_directive(text: &str) -> bool {
    text.starts_with('-') && !text.contains(char::is_control)
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-+".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_part)
}

fn is_word(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-+:,/@=".contains(c);
    !text.is_empty() && text.chars().all(is_part)
}

/// Whether a text is a job ID: `123`, `123_4`, `123[4].server`, `ƒM7Zq9AKHno`.
pub(super) fn is_job_id(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-[]ƒ".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_part)
}
