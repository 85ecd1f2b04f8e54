//! `--net-plugin`: the net plug-in under test, checked before ranks are launched.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use regatta_comm::net_plugin::SUPPORTED_VERSIONS;
use regatta_discover::loader::{Loader, host_machine};
use regatta_discover::{Env, Sysroot};
use regatta_doctor::plugin::PluginKind;
use regatta_measure::rank::BenchError;
use regatta_measure::request::Backend;

use crate::args::bench::BenchRankArgs;
use crate::commands::launcher::nccl_plugins::{NET_VARIABLE, absolute_path, resolve};
use crate::commands::plugin::library_facts;
use crate::options::NetPlugin;

/// Selects the plug-in instead of `--net-plugin`.
const VARIABLE: &str = "REGATTA_NET_PLUGIN";

/// Checks the plug-in, makes its path absolute for ranks with another working directory, and selects its
/// backend.
pub fn apply(ranks: &mut BenchRankArgs, is_rank: bool) -> Result<()> {
    let from_env = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let (plugin, origin) = match (&ranks.plugins.net_plugin, ranks.backend) {
        (Some(plugin), _) => (plugin.clone(), "--net-plugin"),
        (None, Backend::NetPlugin) => {
            let missing = "--backend net-plugin needs --net-plugin PATH, the library under test";
            (NetPlugin::Path(from_env().context(missing)?), VARIABLE)
        }
        (None, _) => return Ok(()),
    };
    let uses_nccl = match ranks.backend {
        Backend::Nccl | Backend::Rccl => true,
        Backend::Auto | Backend::NetPlugin => false,
        Backend::Host | Backend::Tcp | Backend::Libfabric => bail!(
            "--net-plugin selects the backend net-plugin: remove --backend {}, which does not use it",
            ranks.backend.name()
        ),
    };
    if is_rank && uses_nccl {
        bail!(
            "--net-plugin with NCCL is for ranks that this command launches: in a job, set {NET_VARIABLE} to \
             the path of the library"
        );
    }
    let plugin = match plugin {
        NetPlugin::Path(path) if !uses_nccl => {
            let path = absolute_path(&path).context(origin)?;
            check(&path).context(origin)?;
            NetPlugin::Path(path)
        }
        NetPlugin::Regatta if is_rank => bail!(BenchError::NoNetPlugin),
        plugin => resolve(&plugin, true)?,
    };
    if !uses_nccl {
        ranks.backend = Backend::NetPlugin;
    }
    ranks.plugins.net_plugin = Some(plugin);
    Ok(())
}

/// The plug-in that the launcher installs, and of which it tells the ranks. Those of the backend net-plugin
/// know the path of another one, whatever plug-in the site selects for NCCL.
pub fn for_launch(ranks: &BenchRankArgs) -> Option<NetPlugin> {
    let is_known = |plugin: &NetPlugin| {
        matches!((plugin, ranks.backend), (NetPlugin::Path(_), Backend::NetPlugin))
    };
    ranks.plugins.net_plugin.clone().filter(|plugin| !is_known(plugin))
}

fn check(path: &Path) -> Result<()> {
    check_versions(path, &net_versions(path)?)
}

/// The versions of the net interface that a library exports, without loading it.
fn net_versions(path: &Path) -> Result<Vec<u32>> {
    let loader = Loader::new(&Sysroot::live(), &Env::from_process(), host_machine());
    let facts = library_facts(&loader, &path.to_string_lossy())?;
    match facts.load.reason() {
        Some(reason) if !reason.is_empty() => bail!("{}: {reason}", path.display()),
        _ => {}
    }
    let net = facts.interfaces.into_iter().find(|interface| interface.kind == PluginKind::Net);
    Ok(net.map(|interface| interface.versions).unwrap_or_default())
}

/// Fails if none of the exported versions is supported.
fn check_versions(path: &Path, exported: &[u32]) -> Result<()> {
    if exported.iter().any(|version| SUPPORTED_VERSIONS.contains(version)) {
        return Ok(());
    }
    let found = match exported {
        [] => "exports no net interface of NCCL".to_owned(),
        versions => {
            let versions: Vec<String> = versions.iter().map(|v| format!("v{v}")).collect();
            format!("exports only the net interface {}", versions.join(", "))
        }
    };
    let path = path.display();
    bail!("{path} {found}; supported are v8 to v11; `regatta plugin check {path}` explains more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::parse_bench;

    fn applied(options: &str) -> Result<BenchRankArgs> {
        let mut command = parse_bench(format!("all-reduce {options}").split_whitespace())?;
        let ranks = command.ranks_mut().context("no ranks")?;
        apply(ranks, false)?;
        Ok(ranks.clone())
    }

    #[test]
    fn a_library_without_a_net_interface_is_refused() {
        let program = std::env::current_exe().unwrap();
        let shown = program.display();
        for (options, expected) in [
            (
                "--net-plugin /nonexistent.so".to_owned(),
                "--net-plugin: cannot read /nonexistent.so: No such file",
            ),
            ("--net-plugin /proc/self/status".to_owned(), "/proc/self/status: "),
            (format!("--net-plugin {shown}"), "exports no net interface of NCCL; supported are v8"),
            (format!("--net-plugin {shown} --backend tcp"), "remove --backend tcp"),
            ("--backend net-plugin".to_owned(), "needs --net-plugin PATH"),
        ] {
            let error = format!("{:#}", applied(&options).unwrap_err());
            assert!(error.contains(expected), "{options}: {error}");
        }
        assert_eq!(applied("--backend tcp").unwrap().plugins.net_plugin, None);
    }

    #[test]
    fn the_launcher_selects_the_plugin_of_nccl_and_installs_our_own() {
        let ranks = applied("--net-plugin regatta").unwrap();
        assert_eq!(ranks.backend, Backend::NetPlugin);
        assert_eq!(for_launch(&ranks), Some(NetPlugin::Regatta));
        let program = std::env::current_exe().unwrap();
        let mut ranks =
            applied(&format!("--backend nccl --net-plugin {}", program.display())).unwrap();
        assert_eq!(ranks.backend, Backend::Nccl);
        assert_eq!(for_launch(&ranks), Some(NetPlugin::Path(program.clone())));
        let error = apply(&mut ranks, true).unwrap_err().to_string();
        assert!(error.contains("in a job, set NCCL_NET_PLUGIN to"), "{error}");
        ranks.backend = Backend::NetPlugin;
        assert_eq!(for_launch(&ranks), None, "the ranks know the path");
    }

    #[test]
    fn unsupported_versions_are_named() {
        let path = Path::new("/lib/libnccl-net.so");
        assert!(check_versions(path, &[6, 8]).is_ok() && check_versions(path, &[11, 12]).is_ok());
        let error = check_versions(path, &[6, 7]).unwrap_err().to_string();
        let expected = "/lib/libnccl-net.so exports only the net interface v6, v7; supported are v8 to v11; \
                        `regatta plugin check /lib/libnccl-net.so` explains more";
        assert_eq!(error, expected);
    }
}
