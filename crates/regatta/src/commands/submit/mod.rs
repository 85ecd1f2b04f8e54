//! `regatta submit`: writes a batch script with the site's requirements, and submits it.

pub mod record;
mod site;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use regatta_draw::escapes::keep_colours;
use regatta_launch::subprocess::capture;
use regatta_model::document;
use regatta_place::batch::{self, BatchJob, BatchScheduler, Dependency, RunDir, RunKind};
use regatta_place::site_profile::Profile;

use crate::args::submit::SubmitArgs;
use crate::commands::launcher::{nccl_plugins, profile};
use crate::options::NetPlugin;
use crate::{output, shell};
use record::JobRecord;
use site::Site;

/// Folder of the job folders.
const ROOT: &str = "jobs";
/// Name of the script in the job folder.
const SCRIPT: &str = "job.sh";
/// Limit on the submission: a loaded controller answers late.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the command.
pub fn run(args: &SubmitArgs) -> Result<()> {
    let site = Site::detect(args.system.as_deref(), &args.site_file)?;
    let scheduler = site.scheduler(args.scheduler)?;
    let mut job = batch_job(args, &site, scheduler)?;
    if args.dry_run {
        return output::print_raw(&batch::script(scheduler, &job, &site.profile)?);
    }
    // Before the folder is created: most mistakes are found here.
    batch::script(scheduler, &job, &site.profile)?;
    let folder = create_folder(args.job_dir.as_deref(), &mut job)?;
    let submitted = submit(scheduler, &job, &site.profile, &folder);
    if submitted.is_err() {
        let _ = std::fs::remove_file(folder.join(SCRIPT));
        // Fails if something else is in it.
        let _ = std::fs::remove_dir(&folder);
    }
    let record = submitted?;
    record.save();
    report(args, &record)
}

fn report(args: &SubmitArgs, record: &JobRecord) -> Result<()> {
    if args.json {
        return output::print(&document::to_json(record)?);
    }
    let (folder, scheduler) = (record.folder.display(), record.scheduler);
    output::eprint(&format!(
        "submitted to {scheduler}; script and output: {folder}; state: regatta jobs\n"
    ));
    output::print(&format!("{}\n", record.id))
}

/// Writes the script and submits it.
fn submit(
    scheduler: BatchScheduler,
    job: &BatchJob,
    site: &Profile,
    folder: &Path,
) -> Result<JobRecord> {
    let script = folder.join(SCRIPT);
    let text = batch::script(scheduler, job, site)?;
    std::fs::write(&script, text)
        .and_then(|()| std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", script.display()))?;
    let words = scheduler.submit_command(&format!("{}/{SCRIPT}", job.job_dir));
    let shown = words.join(" ");
    let output = capture(&words[0], &words[1..], SUBMIT_TIMEOUT)
        .map_err(|error| start_error(scheduler, error))?;
    if !output.end.is_success() {
        let said = output.stderr.trim();
        let said = if said.is_empty() { output.stdout.trim() } else { said };
        bail!("`{shown}` failed with {}: {}", output.end, keep_colours(said));
    }
    let id = scheduler.parse_job_id(&output.stdout);
    let id = id.ok_or_else(|| anyhow!("`{shown}` printed no job ID: {:?}", output.stdout))?;
    let run_dir = match batch::run_dir(job) {
        RunDir::Named(folder) => Some(std::path::absolute(folder)?),
        RunDir::Numbered | RunDir::Resumed | RunDir::Unknown => None,
    };
    Ok(JobRecord::new(id, scheduler, job, site, &script, run_dir))
}

fn start_error(scheduler: BatchScheduler, error: std::io::Error) -> anyhow::Error {
    let program = scheduler.program();
    match error.kind() {
        std::io::ErrorKind::NotFound => anyhow!(
            "{program} of {scheduler} is not installed here: submit on a login node of the site, or \
             print the script with --dry-run"
        ),
        _ => anyhow::Error::new(error).context(format!("cannot run {program}")),
    }
}

fn batch_job(args: &SubmitArgs, site: &Site, scheduler: BatchScheduler) -> Result<BatchJob> {
    let command = args.command.iter().cloned().map(utf8).collect::<Result<Vec<_>>>()?;
    let kind = RunKind::of(&command);
    let for_programs = [
        ("--ranks-per-node", args.ranks_per_node.is_some()),
        ("--check-net", args.check_net),
        ("--require-net", args.require_net.is_some()),
        (batch::PROFILE, args.plugins.profile.is_some()),
        (batch::TUNER, args.plugins.tuner.is_some()),
        (batch::NET_PLUGIN, args.plugins.net_plugin.is_some()),
    ];
    let given = for_programs.iter().find(|(_, is_given)| *is_given);
    if let Some((option, _)) = given.filter(|_| !matches!(kind, RunKind::Program | RunKind::Launch))
    {
        bail!("{option} is for programs: pass it to the command of regatta");
    }
    let name = args.name.clone().unwrap_or_else(|| default_name(&command));
    let after = |jobs: &[String], must_succeed: bool| -> Vec<Dependency> {
        jobs.iter().map(|job| Dependency { job: job.clone(), must_succeed }).collect()
    };
    let job_dir = args.job_dir.clone().unwrap_or_else(|| free_folder(&name));
    // As sbatch itself does; written to the script, so that it is complete.
    let from_env = || std::env::var("SBATCH_ACCOUNT").ok().filter(|name| !name.is_empty());
    let is_slurm = scheduler == BatchScheduler::Slurm;
    let account = args.account.clone().or_else(|| from_env().filter(|_| is_slurm));
    Ok(BatchJob {
        nodes: args.nodes,
        time: args.time,
        account,
        queue: args.partition.clone(),
        gpus_per_node: args.gpus_per_node,
        array: args.array,
        after: [after(&args.after, true), after(&args.after_any, false)].concat(),
        modules: args.module.clone(),
        container: args.container.clone(),
        container_runtime: args.container_runtime,
        signal_before: args.signal_before,
        requeue: args.requeue,
        directives: args.directive.clone(),
        without: args.without.clone(),
        regatta: regatta_path(args),
        launch_options: launch_options(args, site)?,
        name,
        job_dir,
        command,
    })
}

/// Options for `regatta launch`: the site, because compute nodes may lack what identifies it.
fn launch_options(args: &SubmitArgs, site: &Site) -> Result<Vec<String>> {
    let mut options = Vec::new();
    if site.is_known {
        options.extend(["--site".to_owned(), site.profile.name.clone()]);
    }
    for file in &args.site_file {
        let path = std::path::absolute(file)?.into_os_string();
        options.extend(["--site-file".to_owned(), utf8(path)?]);
    }
    for name in &args.without {
        options.extend(["--without".to_owned(), name.clone()]);
    }
    if let Some(count) = args.ranks_per_node {
        options.extend(["--ranks-per-node".to_owned(), count.to_string()]);
    }
    if args.check_net {
        options.push(batch::CHECK_NET.to_owned());
    }
    if let Some(name) = &args.require_net {
        options.extend([batch::REQUIRE_NET.to_owned(), name.clone()]);
    }
    if let Some(level) = args.plugins.profile {
        options.push(format!("{}={}", batch::PROFILE, profile::level_name(level)));
    }
    options.extend(plugin_options(args)?);
    Ok(options)
}

/// The options of plug-ins. A damaged table is found before the job waits in the queue; a library may
/// exist on compute nodes only.
fn plugin_options(args: &SubmitArgs) -> Result<Vec<String>> {
    let mut options = Vec::new();
    if let Some(table) = &args.plugins.tuner {
        nccl_plugins::TuningTable::read(table)?;
        let path = std::path::absolute(table)?.into_os_string();
        options.extend([batch::TUNER.to_owned(), utf8(path)?]);
    }
    if let Some(library) = &args.plugins.net_plugin {
        let library = match nccl_plugins::resolve(library, false)? {
            NetPlugin::Regatta => "regatta".to_owned(),
            NetPlugin::Path(path) => utf8(path.into_os_string())?,
        };
        options.extend([batch::NET_PLUGIN.to_owned(), library]);
    }
    Ok(options)
}

/// This program by its path, because PATH may differ in the job; by its name in a script for another
/// machine.
fn regatta_path(args: &SubmitArgs) -> String {
    let own = std::env::current_exe().ok().and_then(|path| utf8(path.into_os_string()).ok());
    let elsewhere = args.dry_run && args.system.is_some();
    own.filter(|_| !elsewhere).unwrap_or_else(|| "regatta".to_owned())
}

fn utf8(text: OsString) -> Result<String> {
    text.into_string().map_err(|text| {
        let shown = shell::quote_words([&text]);
        anyhow!("{shown} is not UTF-8 and cannot be in a batch script")
    })
}

/// A name from the command: `train` of `python train.py`, `regatta-train` of `regatta train`.
fn default_name(command: &[String]) -> String {
    let stem = |word: &String| {
        let stem = Path::new(word).file_stem()?.to_str()?;
        let is_part = |c: &char| c.is_ascii_alphanumeric() || "_-".contains(*c);
        let name: String = stem.chars().filter(is_part).take(40).collect();
        name.starts_with(|c: char| c.is_ascii_alphanumeric()).then_some(name)
    };
    let program = command.first().and_then(stem).unwrap_or_default();
    let second = command.get(1).filter(|word| !word.starts_with('-')).and_then(stem);
    let interpreters = ["python", "bash", "sh", "julia", "perl", "Rscript"];
    let is_interpreter = interpreters.iter().any(|name| program.starts_with(name));
    match (program.as_str(), second) {
        ("regatta", Some(subcommand)) => format!("regatta-{subcommand}"),
        (_, Some(script)) if is_interpreter => script,
        ("", _) => "regatta".to_owned(),
        _ => program,
    }
}

/// `jobs/NAME`, or `jobs/NAME-2` and so on: the first that does not exist.
fn free_folder(name: &str) -> String {
    let numbered = (2..).map(|number: u32| format!("{ROOT}/{name}-{number}"));
    let mut names = std::iter::once(format!("{ROOT}/{name}")).chain(numbered);
    names.find(|folder| !Path::new(folder).exists()).unwrap_or_else(|| format!("{ROOT}/{name}"))
}

/// Creates the job folder; another job may have taken a free name meanwhile.
fn create_folder(given: Option<&str>, job: &mut BatchJob) -> Result<PathBuf> {
    loop {
        let folder = PathBuf::from(&job.job_dir);
        let parent = folder.parent().unwrap_or(Path::new(""));
        if !parent.as_os_str().is_empty() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot create {}", parent.display()))?;
        }
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(std::path::absolute(folder)?),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => match given {
                None => job.job_dir = free_folder(&job.name),
                Some(_) if folder.join(SCRIPT).exists() => {
                    bail!("--job-dir {} already has a job: choose another folder", job.job_dir)
                }
                Some(_) => return Ok(std::path::absolute(folder)?),
            },
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", job.job_dir));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, LaunchArgs};

    #[test]
    fn options_of_the_script_mean_the_same_to_launch() {
        let words = "regatta submit -N 2 -t 1h --system lumi-g --without FI_CXI_ATS \
                     --ranks-per-node 3 --check-net --require-net cxi --profile=network \
                     --net-plugin regatta -- python train.py";
        let Command::Submit(args) = Cli::parse_from(words.split_whitespace()).command else {
            panic!("another command")
        };
        let site = Site::detect(args.system.as_deref(), &[]).unwrap();
        let options = launch_options(&args, &site).unwrap().join(" ");
        let launch = LaunchArgs::of_option(Some(&options)).unwrap().into_options().unwrap();
        let (job, parts) = (&launch.job, &launch.parts);
        assert_eq!(job.placement.job.ranks_per_node, Some(3));
        assert_eq!(job.source.site.as_deref(), Some("lumi-g"), "{options}");
        assert!(parts.check_net && parts.require_net.is_some(), "{options}");
        assert!(parts.plugins.profile == args.plugins.profile && args.plugins.profile.is_some());
        assert_eq!(parts.plugins.net_plugin, args.plugins.net_plugin);
        assert_eq!(job.rank_env.without, ["FI_CXI_ATS"]);
    }

    #[test]
    fn job_is_named_after_its_program() {
        for (command, name) in [
            ("python train.py --lr 1", "train"),
            ("python3.11 /home/ada/my-run.py", "my-run"),
            ("./a.out", "a"),
            ("regatta train gpt2", "regatta-train"),
            ("python -m torch", "python"),
            ("/opt/.x", "x"),
            ("./-x", "regatta"),
            ("ñ", "regatta"),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(default_name(&words), name, "{command}");
        }
    }
}
