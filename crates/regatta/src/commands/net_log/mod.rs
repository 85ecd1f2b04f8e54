//! `regatta net-log`: the network that NCCL or RCCL used, from their debug logs.

mod render;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regatta_model::document;
use regatta_model::run_folder::{NET_LOGS, parse_net_log_name};
use regatta_observe::net_log::NetLog;
use regatta_observe::net_log::report::{Level, report};

use crate::args::net_log::NetLogArgs;
use crate::output;
pub use render::{failed_requirement, render, verdict_line};

/// Size of the chunks in which logs are read.
const CHUNK: usize = 1 << 20;

/// Runs the command.
pub fn run(args: &NetLogArgs) -> Result<ExitCode> {
    let mut log = NetLog::default();
    for path in &args.files {
        add(&mut log, path)?;
    }
    let report = report(&log, args.require.as_ref());
    output::print_report(args.json, || Ok(document::to_json(&report)?), || render(&report))?;
    let failed = report.counts.records == 0 || failed_requirement(&report);
    debug_assert!(report.counts.records > 0 || report.level == Level::Unknown);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads a file, standard input, or the logs of a run folder.
fn add(log: &mut NetLog, path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return read(log, "standard input", None, io::stdin().lock()).context("standard input");
    }
    let context = || format!("cannot read {}", path.display());
    if path.is_dir() {
        let files = rank_logs(path).with_context(context)?;
        if files.is_empty() {
            bail!(
                "{} has no rank-N.log, nor has its folder {NET_LOGS}: name the files, or the run folder of \
                 `regatta launch --check-net`",
                path.display()
            );
        }
        for (rank, file) in files {
            add_file(log, &file, Some(rank))?;
        }
        return Ok(());
    }
    add_file(log, path, None)
}

fn add_file(log: &mut NetLog, path: &Path, rank: Option<u32>) -> Result<()> {
    let name = path.display().to_string();
    let read = File::open(path).and_then(|file| read(log, &name, rank, file));
    read.with_context(|| format!("cannot read {name}"))
}

fn read(log: &mut NetLog, name: &str, rank: Option<u32>, mut file: impl Read) -> io::Result<()> {
    let source = log.add_source(name, rank);
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => log.read(source, &chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    log.finish(source);
    Ok(())
}

/// The logs of a run folder, or of its folder of logs, by rank.
fn rank_logs(folder: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let inner = folder.join(NET_LOGS);
    let folder = if inner.is_dir() { inner } else { folder.to_owned() };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let rank = name.as_deref().and_then(parse_net_log_name);
        found.extend(rank.map(|rank| (rank, path)));
    }
    found.sort();
    Ok(found)
}
