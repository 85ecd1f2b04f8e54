//! Versions of the communication libraries that a job would load, from file names and metadata.
//!
//! No library is loaded, because that runs its code. libfabric pulls in PSM2 in some distributions,
//! which calibrates the clock for a fifth of a second, installs signal handlers and changes the
//! thread's affinity.

use regatta_model::Software;

use crate::env::Env;
use crate::sysroot::Sysroot;

/// Reads the versions. The GPU scan fills in the drivers.
pub(crate) fn scan(root: &Sysroot, env: &Env) -> Software {
    let dirs = dirs(root, env);
    let library = |name: &str| library(root, &dirs, name);
    Software {
        rocm: rocm(root, env),
        nccl: library("libnccl.so.2").and_then(|file| nccl(root, &file)),
        rccl: library("librccl.so.1").and_then(|file| rccl(root, &file)),
        libfabric: library("libfabric.so.1").and_then(|file| libfabric(root, &file)),
        net_plugin: net_plugin(root, env, &dirs),
        ..Software::default()
    }
}

/// Directory of NCCL in NVIDIA's Python package, below site-packages.
const PYTHON_NCCL: &str = "/nvidia/nccl/lib";

/// The library search path of a job: `LD_LIBRARY_PATH`, then the Python environment, because
/// PyTorch ships NCCL or RCCL and loads it first, then ROCm and the system.
fn dirs(root: &Sysroot, env: &Env) -> Vec<String> {
    let mut dirs: Vec<String> =
        env.get("LD_LIBRARY_PATH").unwrap_or_default().split(':').map(str::to_owned).collect();
    for base in python_environments(root, env) {
        let lib = format!("{base}/lib");
        let names = root.list_dir(&lib);
        dirs.push(lib.clone());
        for python in names.iter().filter(|name| name.starts_with("python3")) {
            let site = format!("{lib}/{python}/site-packages");
            dirs.extend([format!("{site}{PYTHON_NCCL}"), format!("{site}/torch/lib")]);
        }
    }
    dirs.extend(env.get("ROCM_PATH").map(|p| format!("{p}/lib")));
    let system = [
        "/opt/rocm/lib",
        "/opt/cray/libfabric/default/lib64",
        "/opt/amazon/efa/lib",
        "/usr/local/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib",
    ];
    dirs.extend(system.map(str::to_owned));
    dirs.retain(|f| f.starts_with('/') && root.exists(f));
    dirs
}

/// The active environment, else that of the first `python3` in `PATH`.
fn python_environments(root: &Sysroot, env: &Env) -> Vec<String> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| env.get(v));
    let path = env.get("PATH").unwrap_or_default();
    let python = path.split(':').find(|dir| root.exists(&format!("{dir}/python3")));
    let base = python.and_then(|dir| dir.trim_end_matches('/').strip_suffix("/bin"));
    named.chain(base).map(str::to_owned).collect()
}

/// The file that a program would load: the first with the versioned or unversioned name.
fn library(root: &Sysroot, dirs: &[String], name: &str) -> Option<String> {
    let bare = name.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
    let paths = dirs.iter().flat_map(|f| [format!("{f}/{name}"), format!("{f}/{bare}")]);
    root.resolve(&paths.into_iter().find(|path| root.exists(path))?)
}

/// NCCL's version is in its file name or in the name of the Python package's metadata.
fn nccl(root: &Sysroot, file: &str) -> Option<String> {
    let (dir, name) = file.rsplit_once('/')?;
    if let Some(version) = name.strip_prefix("libnccl.so.").filter(|v| v.contains('.')) {
        return Some(version.to_owned());
    }
    let metadata = root.list_dir(dir.strip_suffix(PYTHON_NCCL)?);
    metadata.iter().find_map(|name| {
        let rest = name.strip_prefix("nvidia_nccl_")?.strip_suffix(".dist-info")?;
        Some(rest.split_once('-')?.1.to_owned())
    })
}

/// RCCL's file name has ROCm's version; the CMake package has its own.
fn rccl(root: &Sysroot, file: &str) -> Option<String> {
    let dir = file.rsplit_once('/')?.0;
    let text = root.read_text(&format!("{dir}/cmake/rccl/rccl-config-version.cmake"))?;
    let line = text.lines().find_map(|l| l.trim().strip_prefix("set(PACKAGE_VERSION"))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// libfabric's file name has the ABI version; pkg-config has the release.
fn libfabric(root: &Sysroot, file: &str) -> Option<String> {
    let dir = file.rsplit_once('/')?.0;
    let text = root.read_text(&format!("{dir}/pkgconfig/libfabric.pc"))?;
    text.lines().find_map(|l| l.strip_prefix("Version:")).map(|v| v.trim().to_owned())
}

fn rocm(root: &Sysroot, env: &Env) -> Option<String> {
    let base = env.get("ROCM_PATH").unwrap_or("/opt/rocm");
    let text = root.read_text(&format!("{base}/.info/version"))?;
    text.split('-').next().map(str::to_owned)
}

fn net_plugin(root: &Sysroot, env: &Env, dirs: &[String]) -> Option<String> {
    if let Some(named) = env.get("NCCL_NET_PLUGIN").filter(|p| p.starts_with('/')) {
        return root.exists(named).then(|| named.to_owned());
    }
    let names = ["librccl-net.so", "libnccl-net.so", "libnccl-net-ofi.so", "librccl-net-ofi.so"];
    let mut paths = dirs.iter().flat_map(|f| names.iter().map(move |n| format!("{f}/{n}")));
    paths.find(|path| root.exists(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_sysfs::FakeSysfs;

    fn found(tree: &FakeSysfs, env: &[(&str, &str)]) -> Software {
        scan(&tree.root(), &env.iter().copied().collect())
    }

    #[test]
    fn versions_come_from_file_names_and_metadata() {
        let tree = FakeSysfs::new();
        tree.file("/usr/lib64/libnccl.so.2.28.9", "");
        tree.link("/usr/lib64/libnccl.so.2", "/usr/lib64/libnccl.so.2.28.9");
        tree.file("/opt/rocm-6.2.0/lib/librccl.so.1.0.60200", "");
        tree.link("/opt/rocm-6.2.0/lib/librccl.so.1", "librccl.so.1.0.60200");
        tree.link("/opt/rocm", "/opt/rocm-6.2.0");
        assert_eq!(found(&tree, &[]).rccl, None, "1.0.60200 is ROCm's version");
        let cmake = "# generated by CMake\nset(PACKAGE_VERSION \"2.20.5\")\n";
        tree.file("/opt/rocm/lib/cmake/rccl/rccl-config-version.cmake", cmake);
        tree.file("/usr/lib64/libfabric.so.1.20.0", "");
        tree.link("/usr/lib64/libfabric.so.1", "/usr/lib64/libfabric.so.1.20.0");
        assert_eq!(found(&tree, &[]).libfabric, None, "1.20.0 is the ABI version");
        tree.file("/usr/lib64/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.17.0\n");
        let software = found(&tree, &[]);
        let versions = [software.nccl, software.rccl, software.libfabric];
        assert_eq!(versions.map(Option::unwrap), ["2.28.9", "2.20.5", "1.17.0"]);
    }

    #[test]
    fn nccl_of_the_python_environment_precedes_the_systems() {
        let tree = FakeSysfs::new();
        tree.file("/usr/lib64/libnccl.so.2.19.3", "");
        tree.link("/usr/lib64/libnccl.so.2", "/usr/lib64/libnccl.so.2.19.3");
        let site = "/home/ann/env/lib/python3.11/site-packages";
        tree.file(&format!("{site}/nvidia/nccl/lib/libnccl.so.2"), "");
        let env = [("VIRTUAL_ENV", "/home/ann/env")];
        assert_eq!(found(&tree, &env).nccl, None, "a job would not load the system's");
        tree.dir(&format!("{site}/nvidia_nccl_cu13-2.30.7.dist-info"));
        assert_eq!(found(&tree, &env).nccl.as_deref(), Some("2.30.7"));
        assert_eq!(found(&tree, &[]).nccl.as_deref(), Some("2.19.3"));
    }
}
