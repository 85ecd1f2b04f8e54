//! Finds libraries as the dynamic loader of glibc does: DT_RPATH, LD_LIBRARY_PATH, DT_RUNPATH, the
//! cache, the system's directories. The loader itself stops at the first missing library.

mod cache;
pub mod elf;

use std::collections::{HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};

pub use cache::parse_ld_cache;
use elf::Dynamic;

use crate::{Env, Sysroot};

/// The dependencies of larger files are not followed: their section headers are at the end.
const MAX_FOLLOWED_LEN: u64 = 256 << 20;
/// Bound for damaged or hostile files.
const MAX_DEPENDENCIES: usize = 1000;
/// Bytes of a file that have class and architecture.
const HEADER_LEN: u64 = 64;
/// The system's directories, in the order of the loaders of the distributions.
const SYSTEM_DIRS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// A library that another one needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// The name that the loader looks for.
    pub name: String,
    /// The file that it finds; `None` if the library is missing.
    pub path: Option<String>,
    /// The file that needs it.
    pub needed_by: String,
}

/// The architecture of this program.
pub fn host_machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        "powerpc64" => 21,
        "riscv64" => 243,
        _ => 0,
    }
}

/// The search of the dynamic loader for libraries of one architecture.
#[derive(Debug, Clone)]
pub struct Loader {
    root: Sysroot,
    machine: u16,
    library_path: Vec<String>,
    cache: HashMap<String, Vec<String>>,
}

/// A library in the order of loading.
struct Loading {
    path: String,
    needed: Vec<String>,
    /// Directories before and after `LD_LIBRARY_PATH`.
    rpath: Vec<String>,
    runpath: Vec<String>,
}

impl Loader {
    /// The search with `LD_LIBRARY_PATH` of an environment. Its relative directories are left out.
    pub fn new(root: &Sysroot, env: &Env, machine: u16) -> Self {
        let library_path = env.get("LD_LIBRARY_PATH").unwrap_or_default().split([':', ';']);
        let cache = root.read_start("/etc/ld.so.cache", MAX_FOLLOWED_LEN).unwrap_or_default();
        let owned = |(name, paths): (&str, Vec<&str>)| {
            (name.to_owned(), paths.into_iter().map(str::to_owned).collect())
        };
        Self {
            root: root.clone(),
            machine,
            library_path: library_path.filter(|d| d.starts_with('/')).map(str::to_owned).collect(),
            cache: parse_ld_cache(&cache).into_iter().map(owned).collect(),
        }
    }

    /// The file that `dlopen` would open for a name: a path if it has a slash.
    pub fn find(&self, name: &str) -> Option<String> {
        self.search(name, &[], &[])
    }

    /// All libraries that a library needs, directly or by another one, in the order of loading.
    pub fn dependencies(&self, path: &str, file: &[u8]) -> Vec<Dependency> {
        let mut found: Vec<Dependency> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        let mut queue = VecDeque::from_iter(loading(path, file, &[]));
        while let Some(library) = queue.pop_front() {
            for name in &library.needed {
                if found.len() == MAX_DEPENDENCIES || !seen.insert(name.clone()) {
                    continue;
                }
                let file = self.search(name, &library.rpath, &library.runpath);
                let needed_by = file_name(&library.path).to_owned();
                if let Some(path) = &file {
                    let bytes = self.root.read_start(path, MAX_FOLLOWED_LEN).unwrap_or_default();
                    queue.extend(loading(path, &bytes, &library.rpath));
                }
                found.push(Dependency { name: name.clone(), path: file, needed_by });
            }
        }
        found
    }

    fn search(&self, name: &str, rpath: &[String], runpath: &[String]) -> Option<String> {
        if name.contains('/') {
            return self.exists(name).then(|| name.to_owned());
        }
        let in_dir = |dir: &str| format!("{}/{name}", dir.trim_end_matches('/'));
        let given = rpath.iter().chain(&self.library_path).chain(runpath).map(|dir| in_dir(dir));
        let cached = self.cache.get(name).into_iter().flatten().cloned();
        let system = SYSTEM_DIRS.into_iter().map(in_dir);
        given.chain(cached).chain(system).find(|path| self.fits(path))
    }

    fn exists(&self, path: &str) -> bool {
        self.root.resolve(path).is_some()
    }

    /// Whether the file is a library of the architecture: the loader passes over others.
    fn fits(&self, path: &str) -> bool {
        let header = self.root.read_start(path, HEADER_LEN).unwrap_or_default();
        elf::machine(&header) == Ok(self.machine)
    }
}

/// What a library makes the loader search; `None` if it is no library. DT_RUNPATH disables the
/// DT_RPATH of the library and of those that need it.
fn loading(path: &str, file: &[u8], inherited: &[String]) -> Option<Loading> {
    let Dynamic { needed, rpath, runpath, .. } = elf::dynamic(file).ok()?;
    let origin = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let rpath = match runpath {
        Some(_) => Vec::new(),
        None => [directories(rpath, origin), inherited.to_vec()].concat(),
    };
    let needed = needed.into_iter().map(str::to_owned).collect();
    Some(Loading { path: path.to_owned(), needed, rpath, runpath: directories(runpath, origin) })
}

/// The directories of a search path, with `$ORIGIN` replaced; others with a variable are left out.
fn directories(path: Option<&str>, origin: &str) -> Vec<String> {
    let expand = |dir: &str| dir.replace("${ORIGIN}", origin).replace("$ORIGIN", origin);
    let dirs = path.unwrap_or_default().split(':').map(expand);
    dirs.filter(|dir| dir.starts_with('/') && !dir.contains('$')).collect()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A string of a string table; `None` if it is empty, not UTF-8 or without an end.
fn string_at(strings: &[u8], offset: u64) -> Option<&str> {
    let text = strings.get(usize::try_from(offset).ok()?..)?;
    let len = text.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(text.get(..len)?).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::cache::tests::cache;
    use super::elf::testing::library_with;
    use super::*;
    use crate::fake_sysfs::FakeSysfs;

    const NEEDED: u64 = 1;
    const RPATH: u64 = 15;
    const RUNPATH: u64 = 29;

    fn library(entries: &[(u64, &str)]) -> Vec<u8> {
        library_with(&[("a", true)], entries)
    }

    fn loader(tree: &FakeSysfs, library_path: &str) -> Loader {
        let env: Env = [("LD_LIBRARY_PATH", library_path)].into_iter().collect();
        Loader::new(&tree.root(), &env, 62)
    }

    #[test]
    fn directories_are_searched_in_the_loaders_order() {
        let tree = FakeSysfs::new();
        let leaf = library(&[]);
        for dir in ["/first", "/opt/p/lib", "/cached", "/usr/lib64"] {
            tree.file(&format!("{dir}/liba.so"), &leaf);
        }
        let mut other = leaf.clone();
        other[0x12] = 183;
        tree.file("/wrong/liba.so", other);
        tree.file("/etc/ld.so.cache", cache(&[("liba.so", "/cached/liba.so")]));
        let plugin = |tag: u64| library(&[(NEEDED, "liba.so"), (tag, "$ORIGIN/lib")]);
        let path = |library_path: &str, file: &[u8]| {
            let found = loader(&tree, library_path).dependencies("/opt/p/libp.so", file);
            found[0].path.clone().unwrap()
        };
        assert_eq!(path("/wrong:/first", &plugin(RUNPATH)), "/first/liba.so");
        assert_eq!(path("/first", &plugin(RPATH)), "/opt/p/lib/liba.so");
        assert_eq!(path("/none", &plugin(RUNPATH)), "/opt/p/lib/liba.so");
        assert_eq!(path("relative:/wrong", &library(&[(NEEDED, "liba.so")])), "/cached/liba.so");
        std::fs::remove_dir_all(tree.root().path("/cached")).unwrap();
        assert_eq!(loader(&tree, "").find("liba.so").unwrap(), "/usr/lib64/liba.so");
        assert_eq!(loader(&tree, "").find("/first/liba.so").unwrap(), "/first/liba.so");
        assert_eq!(loader(&tree, "").find("libz.so"), None);
    }

    #[test]
    fn all_missing_libraries_are_listed() {
        let tree = FakeSysfs::new();
        tree.file("/lib64/liba.so", library(&[(NEEDED, "libgone.so.2"), (NEEDED, "libb.so")]));
        tree.file("/lib64/libb.so.1", library(&[(NEEDED, "liba.so"), (NEEDED, "libgone.so.1")]));
        tree.link("/lib64/libb.so", "libb.so.1");
        let plugin = library(&[(NEEDED, "libgone.so.1"), (NEEDED, "liba.so")]);
        let found = loader(&tree, "").dependencies("/opt/libp.so", &plugin);
        let missing = found.iter().filter(|dependency| dependency.path.is_none());
        let missing: Vec<_> = missing.map(|d| (d.name.as_str(), d.needed_by.as_str())).collect();
        assert_eq!(missing, [("libgone.so.1", "libp.so"), ("libgone.so.2", "liba.so")]);
        assert_eq!(found.len(), 4, "each library once: {found:?}");
    }

    #[test]
    fn rpath_is_inherited_unless_there_is_a_runpath() {
        let tree = FakeSysfs::new();
        tree.file("/p/lib/liba.so", library(&[(NEEDED, "libb.so")]));
        tree.file("/p/lib/libb.so", library(&[]));
        let missing = |entries: &[(u64, &str)]| {
            let file = library(&[&[(NEEDED, "liba.so")], entries].concat());
            let found = loader(&tree, "").dependencies("/p/libp.so", &file);
            found.into_iter().filter(|d| d.path.is_none()).map(|d| d.name).collect::<Vec<_>>()
        };
        assert!(missing(&[(RPATH, "/none:${ORIGIN}/lib")]).is_empty());
        assert_eq!(missing(&[(RUNPATH, "/p/lib")]), ["libb.so"]);
        assert_eq!(missing(&[(RPATH, "$LIB/x")]), ["liba.so"]);
    }

    #[test]
    fn libraries_of_this_program_are_found() {
        let path = std::env::current_exe().unwrap();
        let file = std::fs::read(&path).unwrap();
        let loader = Loader::new(&Sysroot::live(), &Env::from_process(), host_machine());
        let found = loader.dependencies(&path.to_string_lossy(), &file);
        let missing: Vec<_> = found.iter().filter(|d| d.path.is_none()).collect();
        assert!(found.len() > 1 && missing.is_empty(), "{found:?}");
    }
}
