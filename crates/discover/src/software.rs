//! Versions of the communication libraries a job here would load, read off the files around them.
//!
//! None is opened: opening one runs its code. libfabric brings PSM2 along in some distributions,
//! which measures the clock for a fifth of a second, takes over signals and binds the thread.

use regatta_model::Software;

use crate::env::Env;
use crate::root::Root;

/// Reads what can be found. Drivers are filled in by whoever scans the GPUs.
pub(crate) fn software(root: &Root, env: &Env) -> Software {
    let folders = folders(root, env);
    let library = |name: &str| library(root, &folders, name);
    Software {
        rocm: rocm(root, env),
        nccl: library("libnccl.so.2").and_then(|file| nccl(root, &file)),
        rccl: library("librccl.so.1").and_then(|file| rccl(root, &file)),
        libfabric: library("libfabric.so.1").and_then(|file| libfabric(root, &file)),
        net_plugin: net_plugin(root, env, &folders),
        ..Software::default()
    }
}

/// Where NVIDIA's Python package has NCCL, below the folder of packages.
const PYTHON_NCCL: &str = "/nvidia/nccl/lib";

/// Where a job would look: the library path, then the Python environment, since PyTorch brings its
/// own NCCL or RCCL and loads that before the system's, then ROCm and the system.
fn folders(root: &Root, env: &Env) -> Vec<String> {
    let mut folders: Vec<String> =
        env.get("LD_LIBRARY_PATH").unwrap_or_default().split(':').map(str::to_owned).collect();
    for base in python_environments(root, env) {
        folders.push(format!("{base}/lib"));
        for python in root.names(&format!("{base}/lib")).iter().filter(|n| n.starts_with("python3"))
        {
            let site = format!("{base}/lib/{python}/site-packages");
            folders.push(format!("{site}{PYTHON_NCCL}"));
            folders.push(format!("{site}/torch/lib"));
        }
    }
    folders.extend(env.get("ROCM_PATH").map(|p| format!("{p}/lib")));
    folders.push("/opt/rocm/lib".to_owned());
    let system = [
        "/opt/cray/libfabric/default/lib64",
        "/opt/amazon/efa/lib",
        "/usr/local/lib",
        "/usr/lib64",
    ];
    folders.extend(system.map(str::to_owned));
    folders.extend(
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"].map(str::to_owned),
    );
    folders.retain(|f| f.starts_with('/') && root.exists(f));
    folders
}

/// The active environment, else the one of the `python3` that a job would run.
fn python_environments(root: &Root, env: &Env) -> Vec<String> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| env.get(v));
    let path = env.get("PATH").unwrap_or_default();
    let python = path.split(':').find(|folder| root.exists(&format!("{folder}/python3")));
    let base = python.and_then(|folder| folder.trim_end_matches('/').strip_suffix("/bin"));
    named.chain(base).map(str::to_owned).collect()
}

/// The file that a program would load: the first with that name, or without its number.
fn library(root: &Root, folders: &[String], name: &str) -> Option<String> {
    let bare = name.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
    let paths = folders.iter().flat_map(|f| [format!("{f}/{name}"), format!("{f}/{bare}")]);
    root.resolve(&paths.into_iter().find(|path| root.exists(path))?)
}

/// NCCL's file is named after its version, or is in a Python package whose notes are.
fn nccl(root: &Root, file: &str) -> Option<String> {
    let (folder, name) = file.rsplit_once('/')?;
    if let Some(version) = name.strip_prefix("libnccl.so.").filter(|v| v.contains('.')) {
        return Some(version.to_owned());
    }
    let notes = root.names(folder.strip_suffix(PYTHON_NCCL)?);
    notes.iter().find_map(|name| {
        let rest = name.strip_prefix("nvidia_nccl_")?.strip_suffix(".dist-info")?;
        Some(rest.split_once('-')?.1.to_owned())
    })
}

/// RCCL's file is named after ROCm's version; what CMake finds it by has its own.
fn rccl(root: &Root, file: &str) -> Option<String> {
    let folder = file.rsplit_once('/')?.0;
    let text = root.text(&format!("{folder}/cmake/rccl/rccl-config-version.cmake"))?;
    let line = text.lines().find_map(|l| l.trim().strip_prefix("set(PACKAGE_VERSION"))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// The numbers in the name of libfabric's file count interfaces; pkg-config's file has the version.
fn libfabric(root: &Root, file: &str) -> Option<String> {
    let folder = file.rsplit_once('/')?.0;
    let text = root.text(&format!("{folder}/pkgconfig/libfabric.pc"))?;
    text.lines().find_map(|l| l.strip_prefix("Version:")).map(|v| v.trim().to_owned())
}

fn rocm(root: &Root, env: &Env) -> Option<String> {
    let base = env.get("ROCM_PATH").unwrap_or("/opt/rocm");
    let text = root.text(&format!("{base}/.info/version"))?;
    text.split('-').next().map(str::to_owned)
}

fn net_plugin(root: &Root, env: &Env, folders: &[String]) -> Option<String> {
    if let Some(named) = env.get("NCCL_NET_PLUGIN").filter(|p| p.starts_with('/')) {
        return root.exists(named).then(|| named.to_owned());
    }
    let names = ["librccl-net.so", "libnccl-net.so", "libnccl-net-ofi.so", "librccl-net-ofi.so"];
    let mut paths = folders.iter().flat_map(|f| names.iter().map(move |n| format!("{f}/{n}")));
    paths.find(|path| root.exists(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn found(tree: &Tree, env: &[(&str, &str)]) -> Software {
        software(&tree.root(), &env.iter().copied().collect())
    }

    #[test]
    fn versions_are_read_off_files() {
        let tree = Tree::new();
        tree.file("/usr/lib64/libnccl.so.2.28.9", "");
        tree.link("/usr/lib64/libnccl.so.2", "/usr/lib64/libnccl.so.2.28.9");
        tree.file("/opt/rocm-6.2.0/lib/librccl.so.1.0.60200", "");
        tree.link("/opt/rocm-6.2.0/lib/librccl.so.1", "librccl.so.1.0.60200");
        tree.link("/opt/rocm", "/opt/rocm-6.2.0");
        assert_eq!(found(&tree, &[]).rccl, None, "1.0.60200 is ROCm's");
        tree.file(
            "/opt/rocm/lib/cmake/rccl/rccl-config-version.cmake",
            "# written by CMake\nset(PACKAGE_VERSION \"2.20.5\")\n",
        );
        tree.file("/usr/lib64/libfabric.so.1.20.0", "");
        tree.link("/usr/lib64/libfabric.so.1", "/usr/lib64/libfabric.so.1.20.0");
        assert_eq!(found(&tree, &[]).libfabric, None, "1.20.0 counts interfaces");
        tree.file("/usr/lib64/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.17.0\n");
        let software = found(&tree, &[]);
        let versions = [software.nccl, software.rccl, software.libfabric];
        assert_eq!(versions.map(Option::unwrap), ["2.28.9", "2.20.5", "1.17.0"]);
    }

    #[test]
    fn nccl_of_the_python_environment_comes_before_the_systems() {
        let tree = Tree::new();
        tree.file("/usr/lib64/libnccl.so.2.19.3", "");
        tree.link("/usr/lib64/libnccl.so.2", "/usr/lib64/libnccl.so.2.19.3");
        let site = "/home/ann/env/lib/python3.11/site-packages";
        tree.file(&format!("{site}/nvidia/nccl/lib/libnccl.so.2"), "");
        let env = [("VIRTUAL_ENV", "/home/ann/env")];
        assert_eq!(found(&tree, &env).nccl, None, "the system's is not what a job would load");
        tree.folder(&format!("{site}/nvidia_nccl_cu13-2.30.7.dist-info"));
        assert_eq!(found(&tree, &env).nccl.as_deref(), Some("2.30.7"));
        assert_eq!(found(&tree, &[]).nccl.as_deref(), Some("2.19.3"));
    }
}
