//! The dynamic section of a shared library: the libraries that it needs and where they are looked for.

use object::LittleEndian;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME};
use object::read::elf::SectionTable;

use super::{ElfError, Header, text};

/// Bound of the needed libraries, and of the versions of each, for damaged files, whose lists may be long.
const MAX_VERSIONS: usize = 1000;

/// What a library needs from the dynamic loader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dynamic<'a> {
    /// Libraries that it needs, in order.
    pub needed: Vec<&'a str>,
    /// Its own name.
    pub soname: Option<&'a str>,
    /// Directories that are searched before `LD_LIBRARY_PATH`, also for libraries of its libraries.
    pub rpath: Option<&'a str>,
    /// Directories that are searched after `LD_LIBRARY_PATH`; disables `rpath`.
    pub runpath: Option<&'a str>,
    /// Newest version of glibc's symbols that it needs.
    pub glibc: Option<(u32, u32)>,
}

pub(super) fn read<'a>(
    sections: &SectionTable<'a, Header>,
    file: &'a [u8],
) -> Result<Dynamic<'a>, ElfError> {
    let mut found = Dynamic { glibc: required_glibc(sections, file)?, ..Dynamic::default() };
    let table = sections.dynamic_table(LittleEndian, file)?;
    for entry in &table {
        let text = table.string(entry).ok().and_then(text);
        match entry.tag {
            DT_NEEDED => found.needed.extend(text),
            DT_SONAME => found.soname = text,
            DT_RPATH => found.rpath = text,
            DT_RUNPATH => found.runpath = text,
            _ => {}
        }
    }
    Ok(found)
}

/// The newest `GLIBC_x.y` among the required symbol versions.
fn required_glibc(
    sections: &SectionTable<'_, Header>,
    file: &[u8],
) -> Result<Option<(u32, u32)>, ElfError> {
    let Some((needs, link)) = sections.gnu_verneed(LittleEndian, file)? else { return Ok(None) };
    let strings = sections.strings(LittleEndian, file, link)?;
    let mut newest = None;
    for need in needs.take(MAX_VERSIONS) {
        for version in need?.1.take(MAX_VERSIONS) {
            let name = version?.name(LittleEndian, strings).ok().and_then(text);
            newest = newest.max(name.and_then(glibc_version));
        }
    }
    Ok(newest)
}

fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::testing::library_with;
    use super::super::{dynamic, machine, machine_name};
    use super::*;

    #[test]
    fn needed_libraries_and_search_paths_are_read() {
        let entries = [
            (DT_NEEDED.0 as u64, "libfabric.so.1"),
            (DT_NEEDED.0 as u64, "libc.so.6"),
            (DT_SONAME.0 as u64, "libnccl-net.so"),
            (DT_RUNPATH.0 as u64, "$ORIGIN/../lib"),
        ];
        let file = library_with(&[("a", true)], &entries);
        let found = dynamic(&file).unwrap();
        assert_eq!(found.needed, ["libfabric.so.1", "libc.so.6"]);
        assert_eq!((found.soname, found.rpath), (Some("libnccl-net.so"), None));
        assert_eq!((found.runpath, found.glibc), (Some("$ORIGIN/../lib"), None));
        assert_eq!(machine(&file).map(machine_name), Ok("x86_64".to_owned()));
    }

    #[test]
    fn versions_of_this_program_are_read() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = dynamic(&file).unwrap();
        assert!(found.needed.iter().any(|name| name.starts_with("libc.")), "{found:?}");
        if cfg!(target_env = "gnu") {
            assert!(found.glibc.is_some_and(|version| version >= (2, 2)), "{found:?}");
        }
    }

    #[test]
    fn glibc_versions_are_numbers() {
        assert_eq!(glibc_version("GLIBC_2.34"), Some((2, 34)));
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_version("GLIBC_PRIVATE"), None);
        assert_eq!(glibc_version("GLIBCXX_3.4"), None);
    }
}
