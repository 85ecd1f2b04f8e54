//! `--tuner` and `--net-plugin`: plug-ins of NCCL and RCCL that all ranks load, or none. Ranks that select
//! different algorithms deadlock, and ranks with different networks do not connect.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use regatta_launch::attempt::{AttemptSpec, env_var};
use regatta_launch::error::PartError;
use regatta_launch::parts::JobPart;
use regatta_launch::rank_files::{FileSource, MAX_PATH_BYTES, RankFile};
use regatta_launch::run_folder::RunFolder;
use regatta_model::run_folder::{PLUGINS, TUNING_TABLE};
use regatta_nccl_tuning::table::MAX_BYTES;
use regatta_nccl_tuning::{Communicator, Table};
use regatta_train::regular_file;

use crate::options::NetPlugin;
use crate::{output, plugins};

/// Environment variable with the path of NCCL's and RCCL's tuner plug-in.
pub const TUNER_VARIABLE: &str = "NCCL_TUNER_PLUGIN";
/// Environment variable with the path of the tuner's table.
pub const TABLE_VARIABLE: &str = "REGATTA_TUNER";
/// Environment variable with the path of NCCL's and RCCL's network plug-in.
pub const NET_VARIABLE: &str = "NCCL_NET_PLUGIN";
/// Environment variable with the name of the network that NCCL must use.
const NETWORK_VARIABLE: &str = "NCCL_NET";
/// Environment variable of our network plug-in: `require` fails instead of using NCCL's own transport.
const REQUIRE_VARIABLE: &str = "REGATTA_NET";
/// Name of our network in NCCL.
const NETWORK: &str = "Regatta";
/// Most sizes of communicators in a note.
const MAX_SIZES: usize = 8;

/// The plug-ins of a job.
pub struct NcclPlugins {
    tuning: Option<TuningTable>,
    net: Option<NetPlugin>,
    /// The last size of the job for which the table was found to have no rows.
    noted: Option<Communicator>,
}

/// The table of the tuner, read once: a restart must not see a changed file.
pub struct TuningTable {
    path: PathBuf,
    text: String,
    table: Table,
}

impl NcclPlugins {
    /// Checks the options: the table is valid and, if the job runs on this machine, the library exists.
    pub fn load(tuner: Option<&Path>, net: Option<&NetPlugin>, is_live: bool) -> Result<Self> {
        let tuning = tuner.map(TuningTable::read).transpose()?;
        let net = net.map(|net| resolve(net, is_live)).transpose()?;
        Ok(Self { tuning, net, noted: None })
    }

    /// Notes, once, that the table has no rows for a communicator of all ranks.
    fn note_missing_rows(&mut self, attempt: &AttemptSpec) {
        let Some(tuning) = &self.tuning else { return };
        let nodes = attempt.job.placement.nodes.iter().filter(|node| !node.ranks.is_empty());
        let job = Communicator { ranks: attempt.ranks.len() as u32, nodes: nodes.count() as u32 };
        if let Some(note) = missing_rows(&tuning.table, job)
            && self.noted.replace(job) != Some(job)
        {
            output::note(&format!("--tuner {}: {note}", tuning.path.display()));
        }
    }

    /// The files that all ranks must find, with the option of each.
    fn files(&self, folder: &Path) -> Result<Vec<(RankFile, &'static str)>> {
        let in_folder = |variable: &str, name: &str, source, option| -> Result<_> {
            let Some(path) = folder.join(name).to_str().map(str::to_owned) else {
                bail!("{option} needs a run folder whose path is UTF-8: pass --run-dir")
            };
            check_path(variable, &path).with_context(|| format!("{option} {path}"))?;
            Ok((RankFile { variable: variable.to_owned(), path, source }, option))
        };
        let built_in = |plugin: plugins::Plugin| FileSource::BuiltIn(plugin.name.to_owned());
        let mut files = Vec::new();
        if let Some(tuning) = &self.tuning {
            let (name, library) = (plugins::TUNER.name, built_in(plugins::TUNER));
            let contents = FileSource::Contents(tuning.text.clone().into_bytes());
            files.push(in_folder(TUNER_VARIABLE, name, library, "--tuner")?);
            files.push(in_folder(TABLE_VARIABLE, TUNING_TABLE, contents, "--tuner")?);
        }
        let net = match &self.net {
            Some(NetPlugin::Regatta) => Some((plugins::NET.name, built_in(plugins::NET))),
            Some(NetPlugin::Path(path)) => path.to_str().map(|path| (path, FileSource::Existing)),
            None => None,
        };
        if let Some((path, source)) = net {
            // A path that is absolute replaces the folder.
            files.push(in_folder(NET_VARIABLE, path, source, "--net-plugin")?);
        }
        Ok(files)
    }
}

impl JobPart for NcclPlugins {
    /// Sets the variables of all ranks.
    fn plan(&mut self, attempt: &mut AttemptSpec, folder: &Path) -> Result<(), PartError> {
        for (file, option) in self.files(&folder.join(PLUGINS))? {
            set_for_all_ranks(attempt, &file, option)?;
            attempt.files.push(file);
        }
        if self.net == Some(NetPlugin::Regatta) {
            replace_network_name(attempt)?;
        }
        self.note_missing_rows(attempt);
        Ok(())
    }

    /// Writes the plug-ins to the run folder.
    fn start(&mut self, _: &AttemptSpec, folder: &RunFolder) -> Result<(), PartError> {
        let path = folder.path().join(PLUGINS);
        if let Some(tuning) = &self.tuning {
            plugins::TUNER.install(&path)?;
            let table = Path::new(PLUGINS).join(TUNING_TABLE);
            folder.write(&table.to_string_lossy(), &tuning.text)?;
        }
        if self.net == Some(NetPlugin::Regatta) {
            plugins::NET.install(&path)?;
        }
        Ok(())
    }

    fn discard(&mut self, folder: &RunFolder) {
        for name in [plugins::TUNER.name, plugins::NET.name, TUNING_TABLE] {
            folder.remove(PLUGINS, name);
        }
    }
}

/// NCCL ignores a path that it cannot take, and uses its own transport or tuning unnoticed.
fn check_path(variable: &str, path: &str) -> Result<()> {
    let fix = "choose another folder with --run-dir, or another path of the library";
    if variable == NET_VARIABLE && path.contains(',') {
        bail!("NCCL takes {variable} as a list separated by commas; {fix}");
    }
    if variable != TABLE_VARIABLE && path.len() > MAX_PATH_BYTES {
        bail!("NCCL takes at most {MAX_PATH_BYTES} bytes of {variable}; {fix}");
    }
    Ok(())
}

impl TuningTable {
    /// Reads and checks a table.
    pub fn read(path: &Path) -> Result<Self> {
        let context = || format!("--tuner {}", path.display());
        let text = regular_file::read_to_string(path, MAX_BYTES as u64).with_context(context)?;
        let table = text.parse().with_context(context)?;
        Ok(Self { path: path.to_owned(), text, table })
    }
}

/// The plug-in, with its absolute path.
pub fn resolve(net: &NetPlugin, must_exist: bool) -> Result<NetPlugin> {
    let NetPlugin::Path(path) = net else { return Ok(NetPlugin::Regatta) };
    let absolute = absolute_path(path).context("--net-plugin")?;
    if must_exist && !absolute.is_file() {
        bail!(
            "--net-plugin {}: no such file; `regatta` selects the plug-in of this program, and \
             {NET_VARIABLE} in the environment a library inside of a container",
            absolute.display()
        );
    }
    Ok(NetPlugin::Path(absolute))
}

/// The absolute path of a library, for ranks with another working directory.
pub fn absolute_path(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
    if absolute.to_str().is_none() {
        bail!("{}: the path must be UTF-8", absolute.display());
    }
    Ok(absolute)
}

/// Sets the variable of a file on all ranks, in place of the site's value.
fn set_for_all_ranks(attempt: &mut AttemptSpec, file: &RankFile, option: &str) -> Result<()> {
    let RankFile { variable, path, .. } = file;
    check_user_value(variable, attempt.job.env.get(variable), path, option)?;
    let why = format!("all ranks load the same ({option})");
    for rank in &mut attempt.ranks {
        rank.remove_variable(variable);
        rank.add_variable(env_var(variable, path, &why));
    }
    Ok(())
}

/// A value of the user that contradicts an option is an error: one of them would be ignored.
pub fn check_user_value(name: &str, user: Option<&str>, value: &str, option: &str) -> Result<()> {
    match user.filter(|user| !user.is_empty() && *user != value) {
        Some(user) => bail!(
            "{name}={user} is set, and {option} sets it to {value}: unset {name}, or remove {option}"
        ),
        None => Ok(()),
    }
}

/// `NCCL_NET` of the site names the network of another plug-in, so that the job ends without it. NCCL
/// would not find that name: our plug-in is required in its place. The user's own is an error.
fn replace_network_name(attempt: &mut AttemptSpec) -> Result<()> {
    check_network_name(attempt.job.env.get(NETWORK_VARIABLE))?;
    let user_requires = attempt.job.env.get(REQUIRE_VARIABLE).is_some();
    for rank in &mut attempt.ranks {
        let of_site = rank.variables.iter().find(|v| v.variable == NETWORK_VARIABLE);
        let Some(of_site) = of_site.and_then(|variable| variable.value.clone()) else { continue };
        rank.remove_variable(NETWORK_VARIABLE);
        if !user_requires {
            let why = format!("in place of the site's {NETWORK_VARIABLE}={of_site}");
            rank.add_variable(env_var(REQUIRE_VARIABLE, "require", &why));
        }
    }
    Ok(())
}

fn check_network_name(user: Option<&str>) -> Result<()> {
    match user.filter(|user| !user.is_empty() && !user.eq_ignore_ascii_case(NETWORK)) {
        Some(user) => bail!(
            "{NETWORK_VARIABLE}={user} is set, but the network of --net-plugin regatta is {NETWORK}: unset \
             {NETWORK_VARIABLE}, or remove --net-plugin"
        ),
        None => Ok(()),
    }
}

/// Why the table selects nothing for a communicator of all ranks.
fn missing_rows(table: &Table, job: Communicator) -> Option<String> {
    let sizes = table.communicators();
    if sizes.contains(&job) {
        return None;
    }
    let mut names: Vec<String> = sizes.iter().map(Communicator::to_string).collect();
    let more = names.len().saturating_sub(MAX_SIZES);
    names.truncate(MAX_SIZES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = match names.is_empty() {
        true => "no rows at all".to_owned(),
        false => format!("rows for {}{more}", names.join(", ")),
    };
    // Only NCCL knows how it counts the nodes.
    let unless = match sizes.iter().any(|size| size.ranks == job.ranks) {
        true => "unless NCCL counts other nodes (NCCL_HOSTID, NVLink between hosts), its",
        false => "NCCL's",
    };
    Some(format!(
        "the table has no rows for {job}, the size of this job, but {found}: {unless} own choice stands for \
         communicators of all ranks; measure with `regatta bench all --tune FILE --backend nccl` on as many \
         ranks and nodes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_plugin_of_the_user_contradicts_the_option() {
        let check = |user| check_user_value(TUNER_VARIABLE, user, "/run/lib.so", "--tuner");
        let error = check(Some("/opt/own.so")).unwrap_err().to_string();
        let expected = "NCCL_TUNER_PLUGIN=/opt/own.so is set, and --tuner sets it to /run/lib.so: ";
        assert!(error.starts_with(expected), "{error}");
        for user in [None, Some(""), Some("/run/lib.so")] {
            assert!(check(user).is_ok(), "{user:?}");
        }
        assert!(check(Some("none")).is_err());
    }

    #[test]
    fn other_network_of_the_user_contradicts_our_plugin() {
        for user in [None, Some(""), Some("Regatta"), Some("regatta")] {
            assert!(check_network_name(user).is_ok(), "{user:?}");
        }
        let error = check_network_name(Some("AWS Libfabric")).unwrap_err().to_string();
        assert!(error.starts_with("NCCL_NET=AWS Libfabric is set"), "{error}");
    }

    #[test]
    fn sizes_of_the_table_are_named_if_that_of_the_job_is_missing() {
        let row = |ranks| format!("all-reduce ranks={ranks} nodes=1 bytes=1..8 tree ll\n");
        let table = |ranks: std::ops::Range<u32>| -> Table {
            let rows: String = ranks.map(row).collect();
            format!("regatta-nccl-tuning 1\n{rows}").parse().unwrap()
        };
        let job = Communicator { ranks: 8, nodes: 1 };
        assert_eq!(missing_rows(&table(8..9), job), None);
        let note = missing_rows(&table(2..4), job).unwrap();
        let expected = "no rows for ranks=8 nodes=1, the size of this job, but rows for ranks=2 nodes=1, \
                        ranks=3 nodes=1: ";
        assert!(note.contains(expected), "{note}");
        assert!(
            missing_rows(&table(9..20), job).unwrap().contains("ranks=16 nodes=1 and 3 more: ")
        );
        let on_nodes = Communicator { ranks: 2, nodes: 2 };
        let note = missing_rows(&table(2..4), on_nodes).unwrap();
        assert!(note.contains("unless NCCL counts other nodes (NCCL_HOSTID"), "{note}");
        assert!(missing_rows(&table(0..0), job).unwrap().contains("but no rows at all: "));
    }

    #[test]
    fn paths_that_nccl_ignores_are_rejected() {
        let error = |variable, path: &str| check_path(variable, path).unwrap_err().to_string();
        assert!(error(NET_VARIABLE, "/runs/lr=1,bs=2/net.so").contains("separated by commas"));
        let long = format!("/{}.so", "x".repeat(251));
        assert!(error(NET_VARIABLE, &long).starts_with("NCCL takes at most 254 bytes"));
        assert!(error(TUNER_VARIABLE, &long).starts_with("NCCL takes at most 254 bytes"));
        assert!(check_path(TUNER_VARIABLE, "/runs/lr=1,bs=2/tuner.so").is_ok());
        assert!(check_path(TABLE_VARIABLE, &long).is_ok());
        assert!(check_path(NET_VARIABLE, &long[1..]).is_ok());
    }

    #[test]
    fn path_of_a_library_becomes_absolute_and_must_exist() {
        let library = |path: &str| NetPlugin::Path(path.into());
        assert_eq!(resolve(&NetPlugin::Regatta, true).unwrap(), NetPlugin::Regatta);
        let NetPlugin::Path(path) = resolve(&library("Cargo.toml"), true).unwrap() else {
            panic!("a path")
        };
        assert!(path.is_absolute());
        for missing in ["no-such.so", "/dev", "src"] {
            let error = resolve(&library(missing), true).unwrap_err().to_string();
            assert!(error.contains("no such file") && error.contains(missing), "{error}");
        }
        assert!(resolve(&library("no-such.so"), false).is_ok());
    }
}
