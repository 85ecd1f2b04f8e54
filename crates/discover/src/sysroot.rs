//! The file-system root: `/` on the running node, a directory for a recorded one. All system files
//! are read through it, because recorded machines are fixtures.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use regatta_model::CpuSet;

/// A directory that stands for `/`.
#[derive(Debug, Clone)]
pub struct Sysroot {
    base: PathBuf,
}

/// Maximum symbolic links per path, as a bound for loops.
const MAX_LINKS: usize = 40;

impl Sysroot {
    /// The running node.
    pub fn live() -> Self {
        Self { base: PathBuf::from("/") }
    }

    /// A recorded machine below `base`.
    pub fn at(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// Whether this is the running node, which also permits system calls.
    pub fn is_live(&self) -> bool {
        self.base == Path::new("/")
    }

    /// [`Machine::source`](regatta_model::Machine::source) of a machine read from here.
    pub(crate) fn describe(&self) -> String {
        match self.is_live() {
            true => regatta_model::machine::SOURCE_LIVE.to_owned(),
            false => format!("tree:{}", self.base.display()),
        }
    }

    /// Path on this host of an absolute path of the recorded machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// The trimmed content of a file; `None` if it cannot be read. Absence is normal: sysfs returns
    /// an error for attributes that do not apply to a device.
    pub fn read_text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.follow(path)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The first `len` bytes of a regular file. A pipe, which would block, is none.
    pub(crate) fn read_start(&self, path: &str, len: u64) -> Option<Vec<u8>> {
        let path = self.follow(path).filter(|path| path.is_file())?;
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(len).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// A single value, parsed.
    pub fn read_value<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read_text(path)?.parse().ok()
    }

    /// The CPUs in a file with a list (`0-3,8`), else in one with a mask (`00000000,0000010f`).
    pub fn read_cpus(&self, list: &str, mask: &str) -> Option<CpuSet> {
        let from_list = self.read_text(list).and_then(|text| text.parse().ok());
        from_list.or_else(|| CpuSet::from_mask(&self.read_text(mask)?).ok())
    }

    /// A single hexadecimal number such as `0x10de`.
    pub fn read_hex(&self, path: &str) -> Option<u32> {
        let text = self.read_text(path)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
    }

    /// The entries of a directory in natural order (`node2` before `node10`); empty if it does not
    /// exist.
    pub fn list_dir(&self, dir: &str) -> Vec<String> {
        let entries = self.follow(dir).and_then(|dir| std::fs::read_dir(dir).ok());
        let entries = entries.into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort_by(|a, b| natural_key(a).cmp(&natural_key(b)).then(a.cmp(b)));
        names
    }

    /// Whether the file or directory exists.
    pub fn exists(&self, path: &str) -> bool {
        self.follow(path).is_some_and(|p| p.exists())
    }

    /// The path to open. The kernel resolves links on the running node; in a recorded tree it would
    /// leave the tree.
    fn follow(&self, path: &str) -> Option<PathBuf> {
        match self.is_live() {
            true => Some(self.path(path)),
            false => self.resolve(path).map(|p| self.path(&p)),
        }
    }

    /// The path with all symbolic links resolved inside the root; absolute targets start at the
    /// root. `None` if a component does not exist.
    pub fn resolve(&self, path: &str) -> Option<String> {
        if self.is_live() {
            let real = std::fs::canonicalize(self.path(path)).ok()?;
            return Some(real.to_string_lossy().into_owned());
        }
        let mut todo: Vec<String> = components(Path::new(path)).into_iter().rev().collect();
        let mut done: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = todo.pop() {
            if part == ".." {
                done.pop();
                continue;
            }
            done.push(part);
            let current = self.path(&done.join("/"));
            if !std::fs::symlink_metadata(&current).ok()?.is_symlink() {
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            let target = std::fs::read_link(current).ok()?;
            done.truncate(if target.is_absolute() { 0 } else { done.len() - 1 });
            todo.extend(components(&target).into_iter().rev());
        }
        Some(format!("/{}", done.join("/")))
    }
}

fn components(path: &Path) -> Vec<String> {
    let is_name = |c: &Component| matches!(c, Component::Normal(_) | Component::ParentDir);
    let names = path.components().filter(is_name);
    names.map(|c| c.as_os_str().to_string_lossy().into_owned()).collect()
}

/// Natural sort key: pairs of text and number.
fn natural_key(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(text_end);
        let digits_end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, after) = tail.split_at(digits_end);
        key.push((text.to_owned(), digits.parse().unwrap_or(u64::MAX)));
        rest = after;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_resolve_inside_the_root() {
        let dir = std::env::temp_dir().join(format!("regatta-root-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("sys/devices/pci0000:00/0000:00:01.0")).unwrap();
        std::fs::create_dir_all(dir.join("sys/bus/pci/devices")).unwrap();
        std::fs::write(dir.join("sys/devices/pci0000:00/0000:00:01.0/vendor"), "0x10de\n").unwrap();
        let link = dir.join("sys/bus/pci/devices/0000:00:01.0");
        std::os::unix::fs::symlink("../../../devices/pci0000:00/0000:00:01.0", &link).unwrap();
        std::os::unix::fs::symlink("/sys/bus", dir.join("absolute")).unwrap();
        std::os::unix::fs::symlink("loop", dir.join("loop")).unwrap();
        let root = Sysroot::at(&dir);
        assert_eq!(root.read_hex("/sys/bus/pci/devices/0000:00:01.0/vendor"), Some(0x10de));
        let resolved = root.resolve("/absolute/pci/devices/0000:00:01.0");
        assert_eq!(resolved.as_deref(), Some("/sys/devices/pci0000:00/0000:00:01.0"));
        assert_eq!(root.read_text("/loop"), None);
        assert_eq!(root.resolve("/../../etc/passwd"), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn names_sort_naturally() {
        let mut names = ["node10", "node2", "card0", "a"].map(str::to_owned);
        names.sort_by_key(|n| natural_key(n));
        assert_eq!(names, ["a", "card0", "node2", "node10"]);
    }
}
