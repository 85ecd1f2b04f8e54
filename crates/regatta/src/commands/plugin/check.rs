//! `regatta plugin check`: whether NCCL or RCCL would load and use a plug-in, before the job.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_discover::loader::{Loader, host_machine};
use regatta_discover::{Env, Sysroot};
use regatta_doctor::collect::{
    add_loaded, library_version, read_plugin, release_of, table_symbols,
};
use regatta_doctor::plugin::environment::{SelectedPlugin, selected_plugins};
use regatta_doctor::plugin::report::judge;
use regatta_doctor::plugin::{
    CollectiveLibrary, LibraryFacts, LibraryReport, LoadResult, PluginReport, RELEASES, Release,
    names,
};
use regatta_model::document;
use regatta_train::regular_file;

use super::load::load_library;
use super::render::render;
use crate::args::plugin::CheckArgs;
use crate::output;

/// Larger files are not plug-ins.
const MAX_LEN: u64 = 1 << 30;

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let release = args.nccl.as_deref().map(find_release).transpose()?;
    let env = Env::from_process();
    let check = Check {
        loader: Loader::new(&Sysroot::live(), &env, host_machine()),
        releases: release.map_or(&RELEASES[..], std::slice::from_ref),
        limit: Duration::from_secs(args.timeout),
    };
    let report = match &args.path {
        Some(request) => check.named(request, release)?,
        None => check.selected(&env, release)?,
    };
    output::print_report(args.json, || Ok(document::to_json(&report)?), || render(&report))?;
    let failed = match report.selected.is_empty() {
        true => report.libraries.iter().any(|library| !library.usable),
        false => report.selected.iter().any(|selected| selected.problem.is_some()),
    };
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The release of a version, or of a library's file.
fn find_release(text: &str) -> Result<&'static Release> {
    let path = Path::new(text);
    let parsed = text.parse::<&'static Release>();
    if parsed.is_ok() || !text.contains('/') && !path.exists() {
        return Ok(parsed?);
    }
    let context = || format!("--nccl: cannot read {text}");
    let version = File::open(path).and_then(library_version).with_context(context)?;
    let Some((library, version)) = version else {
        bail!("--nccl: {text} is no library of NCCL or RCCL");
    };
    release_of(library, &version).with_context(|| {
        let name = match library {
            CollectiveLibrary::Nccl => "NCCL",
            CollectiveLibrary::Rccl => "RCCL",
        };
        format!("--nccl: {text} is {name} {version}, whose plug-in versions are not known")
    })
}

struct Check<'a> {
    loader: Loader,
    releases: &'a [Release],
    limit: Duration,
}

impl Check<'_> {
    /// The report on the library that a path, file name or suffix stands for.
    fn named(&self, request: &str, release: Option<&Release>) -> Result<PluginReport> {
        let libraries = release.map_or(CollectiveLibrary::ALL.to_vec(), |r| vec![r.library]);
        let names = names::all_names(&libraries, request);
        let is_path = request.contains('/');
        let found = names.iter().find_map(|name| self.loader.find(name));
        let (path, note) = match found {
            _ if is_path => (request.to_owned(), None),
            Some(path) => (path, None),
            // A mistake to explain: neither NCCL nor the loader searches the working directory.
            None if Path::new(request).is_file() => (
                request.to_owned(),
                Some(format!(
                    "by the name {request} NCCL does not find this file of the working directory: use its \
                     absolute path"
                )),
            ),
            None => bail!(
                "{request} not found: the loader finds none of {} in LD_LIBRARY_PATH, its cache and the \
                 system's directories; give the path of the file",
                names.join(", ")
            ),
        };
        let mut library = self.library(&path)?;
        library.notes.extend(note);
        Ok(PluginReport { selected: Vec::new(), libraries: vec![library] })
    }

    /// The report on what the environment selects.
    fn selected(&self, env: &Env, release: Option<&Release>) -> Result<PluginReport> {
        let variable = |name: &str| env.get(name).map(str::to_owned);
        let mut selected = selected_plugins(release, variable, |name| self.loader.find(name));
        let mut libraries: Vec<LibraryReport> = Vec::new();
        for path in selected.iter_mut().filter_map(|selected| selected.path.as_mut()) {
            *path = absolute(path)?;
            if !libraries.iter().any(|library| library.facts.path == *path) {
                libraries.push(self.library(path)?);
            }
        }
        let problem = |selected: &SelectedPlugin| selected.find_problem(&libraries);
        selected.iter_mut().for_each(|selected| selected.problem = problem(selected));
        Ok(PluginReport { selected, libraries })
    }

    fn library(&self, path: &str) -> Result<LibraryReport> {
        let path = absolute(path)?;
        let mut facts = library_facts(&self.loader, &path)?;
        if facts.load.reason() == Some("") {
            self.load(&mut facts)?;
        }
        Ok(judge(facts, self.releases))
    }

    fn load(&self, facts: &mut LibraryFacts) -> Result<()> {
        let symbols = table_symbols(facts);
        match load_library(Path::new(&facts.path), &symbols, self.limit)? {
            (LoadResult::Loaded, loaded) => add_loaded(facts, &symbols, &loaded),
            (failed, _) => facts.load = failed,
        }
        Ok(())
    }
}

/// The facts of a library, without loading it.
pub fn library_facts(loader: &Loader, path: &str) -> Result<LibraryFacts> {
    let file = regular_file::read(Path::new(path), MAX_LEN);
    let file = file.with_context(|| format!("cannot read {path}"))?;
    Ok(read_plugin(loader, path, &file, host_machine()))
}

fn absolute(path: &str) -> Result<String> {
    let absolute = std::path::absolute(path).with_context(|| format!("cannot read {path}"))?;
    Ok(absolute.to_string_lossy().into_owned())
}
