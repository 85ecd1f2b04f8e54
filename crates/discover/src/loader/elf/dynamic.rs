//! The dynamic section of a shared library: the libraries that it needs and where they are looked for.

use super::super::string_at;
use super::{Elf, ElfError};

/// Type of the dynamic section.
const SHT_DYNAMIC: u32 = 6;
/// Type of the section with required symbol versions.
const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
const ENTRY_LEN: usize = 16;
const DT_NEEDED: u64 = 1;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// Bound for damaged files, whose lists may be long.
const MAX_VERSIONS: usize = 10_000;

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

pub(super) fn read<'a>(elf: &Elf<'a>) -> Result<Dynamic<'a>, ElfError> {
    let mut found = Dynamic { glibc: required_glibc(elf)?, ..Dynamic::default() };
    let Some((section, strings)) = elf.find_section(SHT_DYNAMIC)? else { return Ok(found) };
    for entry in elf.bytes(section.offset, section.size)?.chunks_exact(ENTRY_LEN) {
        let Some((tag, value)) = entry.split_first_chunk::<8>() else { break };
        let (tag, offset) = (u64::from_le_bytes(*tag), value.first_chunk().copied());
        if tag == 0 {
            break;
        }
        let text = string_at(strings, u64::from_le_bytes(offset.unwrap_or_default()));
        match tag {
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
fn required_glibc(elf: &Elf<'_>) -> Result<Option<(u32, u32)>, ElfError> {
    let Some((section, strings)) = elf.find_section(SHT_GNU_VERNEED)? else { return Ok(None) };
    let table = Elf(elf.bytes(section.offset, section.size)?);
    let (mut newest, mut file, mut budget) = (None, 0u64, MAX_VERSIONS);
    loop {
        let (count, next) = (table.u16(file + 2)?, table.u32(file + 12)?);
        let mut version = file + u64::from(table.u32(file + 8)?);
        for _ in 0..count {
            budget = budget.checked_sub(1).ok_or(ElfError::Damaged)?;
            let name = string_at(strings, u64::from(table.u32(version + 8)?));
            newest = newest.max(name.and_then(glibc_version));
            match table.u32(version + 12)? {
                0 => break,
                next => version += u64::from(next),
            }
        }
        budget = budget.checked_sub(1).ok_or(ElfError::Damaged)?;
        match next {
            0 => return Ok(newest),
            next => file += u64::from(next),
        }
    }
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
            (DT_NEEDED, "libfabric.so.1"),
            (DT_NEEDED, "libc.so.6"),
            (DT_SONAME, "libnccl-net.so"),
            (DT_RUNPATH, "$ORIGIN/../lib"),
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
