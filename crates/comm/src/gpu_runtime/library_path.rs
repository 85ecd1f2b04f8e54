//! Where vendor libraries are: an environment variable, the dynamic linker, ROCm's directory, or the packages
//! of a Python environment, which bring their own CUDA libraries.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libloading::Library;
use libloading::os::unix;

use super::LibraryError;

/// Loads a library: the one that the environment variable names, or the first of `names` that the
/// dynamic linker, ROCm's directory or a Python environment has.
pub fn open(variable: &str, names: &[&str]) -> Result<Library, LibraryError> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return open_override(variable, Path::new(&path));
    }
    let by_name = names.iter().map(PathBuf::from);
    let in_packages = || {
        let dirs = package_dirs(&python_prefixes(|name| std::env::var_os(name)));
        let paths = dirs.into_iter().flat_map(|dir| names.iter().map(move |name| dir.join(name)));
        paths.filter(|path| path.is_file()).collect::<Vec<_>>()
    };
    let mut why = None;
    let in_rocm = rocm_dirs(|name| std::env::var_os(name))
        .into_iter()
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)).filter(|path| path.is_file()));
    let paths = by_name.chain(in_rocm);
    for path in paths.chain(std::iter::once_with(in_packages).flatten()) {
        preload_builtins(&path);
        // SAFETY: initialising a vendor library that the user installed has no preconditions.
        match unsafe { Library::new(&path) } {
            Ok(library) => return Ok(library),
            Err(error) => why = why.or(Some(error.to_string())),
        }
    }
    let source = match is_rocm(names) {
        true => "set ROCM_PATH to ROCm's directory",
        false => "activate a Python environment that has it",
    };
    let hint =
        format!("set {variable} to its path, add its directory to LD_LIBRARY_PATH, or {source}");
    let what = format!("cannot load the library (tried {})", names.join(", "));
    Err(LibraryError { what, why: why.unwrap_or_default(), hint })
}

/// Loads the library that the user named. Another one in its place would hide the mistake.
fn open_override(variable: &str, path: &Path) -> Result<Library, LibraryError> {
    preload_builtins(path);
    // SAFETY: initialising a vendor library that the user installed has no preconditions.
    unsafe { Library::new(path) }.map_err(|error| LibraryError {
        what: format!("cannot load the library {}", path.display()),
        why: error.to_string(),
        hint: format!("correct or unset {variable}"),
    })
}

/// Where ROCm's libraries are, if its directory is not the dynamic linker's: modules set `ROCM_PATH`.
fn rocm_dirs(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let installed = variable("ROCM_PATH").map(PathBuf::from);
    let roots = installed.into_iter().chain([PathBuf::from("/opt/rocm")]);
    roots.map(|root| root.join("lib")).collect()
}

/// Whether names are those of ROCm's libraries.
fn is_rocm(names: &[&str]) -> bool {
    names.iter().any(|name| name.contains("hip") || name.contains("rccl"))
}

/// Loads the newest version of a library among those of the system and of Python packages whose name
/// starts with `package`. Two versions must not be loaded into one process, so versions are those in
/// file names and package metadata. Otherwise like [`open`].
pub fn open_newest(variable: &str, names: &[&str], package: &str) -> Result<Library, LibraryError> {
    if std::env::var_os(variable).is_none() {
        let prefixes = python_prefixes(|name| std::env::var_os(name));
        let mut found = installed(&system_dirs(), names);
        found.extend(packaged(&package_dirs(&prefixes), names, package));
        let newest = found.into_iter().max_by(|(a, _), (b, _)| a.cmp(b));
        // SAFETY: initialising a vendor library that the user installed has no preconditions.
        if let Some(Ok(library)) = newest.map(|(_, path)| unsafe { Library::new(path) }) {
            return Ok(library);
        }
    }
    open(variable, names)
}

/// Where the dynamic linker looks on common systems.
fn system_dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let standard = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/cuda/lib64",
    ];
    std::env::split_paths(&path).chain(standard.map(PathBuf::from)).collect()
}

/// Libraries in directories, with the versions that the files they link to have in their names, as in
/// `libcudnn.so.9.14.0`.
fn installed(dirs: &[PathBuf], names: &[&str]) -> Vec<(Vec<u32>, PathBuf)> {
    let paths = dirs.iter().flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    let versioned = paths.filter_map(|path| {
        let file = path.canonicalize().ok()?;
        let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
        Some((parse_version(version)?, path))
    });
    versioned.collect()
}

/// Libraries in the directories of packages, with the versions of the packages.
fn packaged(dirs: &[PathBuf], names: &[&str], package: &str) -> Vec<(Vec<u32>, PathBuf)> {
    let paths = dirs.iter().flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    let versioned = paths.filter(|path| path.is_file()).filter_map(|path| {
        // site-packages/nvidia/cudnn/lib/libcudnn.so.9, site-packages/nvidia_cudnn_cu13-9.19.0.dist-info
        let version = entries(path.ancestors().nth(4)?).into_iter().find_map(|entry| {
            let name = entry.file_name()?.to_str()?.strip_suffix(".dist-info")?;
            let (name, version) = name.split_once('-')?;
            if name.starts_with(package) { parse_version(version) } else { None }
        })?;
        Some((version, path))
    });
    versioned.collect()
}

fn parse_version(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|part| part.parse().ok()).collect()
}

/// NVRTC loads its builtins by name, which the linker finds only if they are loaded already.
fn preload_builtins(path: &Path) {
    let is_nvrtc = path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with("libnvrtc.so")
    });
    let Some(dir) = path.parent().filter(|dir| is_nvrtc && !dir.as_os_str().is_empty()) else {
        return;
    };
    let is_builtins = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("libnvrtc-builtins.so"))
    };
    for builtins in entries(dir).into_iter().filter(is_builtins) {
        // SAFETY: as for the library itself.
        let loaded =
            unsafe { unix::Library::open(Some(&builtins), unix::RTLD_NOW | unix::RTLD_GLOBAL) };
        // NVRTC needs it for as long as the process lives.
        loaded.into_iter().for_each(std::mem::forget);
    }
}

/// The Python environments of the user: the active one first, then those of `python3` in the path.
fn python_prefixes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable);
    let mut prefixes: Vec<PathBuf> = active.map(PathBuf::from).collect();
    let path = variable("PATH").unwrap_or_default();
    for bin in std::env::split_paths(&path).filter(|bin| bin.join("python3").exists()) {
        prefixes.extend(bin.parent().map(Path::to_owned));
    }
    prefixes
}

/// The directories of vendor libraries in the packages of Python environments.
fn package_dirs(prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            for packages in ["site-packages", "dist-packages"] {
                let vendor = entries(&python.join(packages).join("nvidia"));
                dirs.extend(vendor.into_iter().map(|package| package.join("lib")));
            }
        }
    }
    dirs.retain(|dir| dir.is_dir());
    dirs
}

/// The entries of a directory, sorted; none if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_that_the_user_named_is_not_replaced_by_another() {
        let error = open_override("REGATTA_CUDART", Path::new("/nonexistent/libc.so.6"));
        let error = error.unwrap_err();
        assert_eq!(error.what, "cannot load the library /nonexistent/libc.so.6");
        assert_eq!(error.hint, "correct or unset REGATTA_CUDART");
        assert!(open_override("REGATTA_CUDART", Path::new("libc.so.6")).is_ok());
    }

    #[test]
    fn rocm_is_found_by_its_variable_and_in_its_default_directory() {
        let dirs = rocm_dirs(|name| (name == "ROCM_PATH").then(|| "/opt/rocm-6.3.1".into()));
        assert_eq!(dirs, ["/opt/rocm-6.3.1/lib", "/opt/rocm/lib"].map(PathBuf::from));
        assert_eq!(rocm_dirs(|_| None), [PathBuf::from("/opt/rocm/lib")]);
        let error = open("REGATTA_TEST_NO_LIBRARY", &["libhip-no-such-library.so"]).unwrap_err();
        assert!(error.hint.ends_with("or set ROCM_PATH to ROCm's directory"), "{error}");
    }

    #[test]
    fn libraries_of_python_packages_are_found() {
        let root = std::env::temp_dir().join(format!("regatta-packages-{}", std::process::id()));
        let lib = root.join("env/lib/python3.12/site-packages/nvidia/cudnn/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(root.join("env/bin")).unwrap();
        std::fs::write(root.join("env/bin/python3"), "").unwrap();
        let path = root.join("env/bin").into_os_string();
        let prefixes = python_prefixes(|name| (name == "PATH").then(|| path.clone()));
        let active = python_prefixes(|name| (name == "VIRTUAL_ENV").then(|| root.clone().into()));
        let dirs = package_dirs(&prefixes);
        assert_eq!(dirs, std::slice::from_ref(&lib));
        assert_eq!(active, std::slice::from_ref(&root));
        let packages = root.join("env/lib/python3.12/site-packages");
        std::fs::create_dir(packages.join("nvidia_cudnn_cu13-9.19.0.56.dist-info")).unwrap();
        std::fs::write(lib.join("libcudnn.so.9"), "").unwrap();
        std::fs::write(root.join("libcudnn.so.9.14.0"), "").unwrap();
        std::os::unix::fs::symlink("libcudnn.so.9.14.0", root.join("libcudnn.so.9")).unwrap();
        let names = ["libcudnn.so.9"];
        let system = installed(std::slice::from_ref(&root), &names);
        let package = packaged(&dirs, &names, "nvidia_cudnn");
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(system, [(vec![9, 14, 0], root.join("libcudnn.so.9"))]);
        assert_eq!(package, [(vec![9, 19, 0, 56], lib.join("libcudnn.so.9"))]);
        assert!(package[0].0 > system[0].0);
    }
}
