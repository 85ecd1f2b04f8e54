//! The dynamic loader's cache, `/etc/ld.so.cache`: which files have a library's name.

use std::collections::HashMap;

use super::string_at;

/// Magic and version of the format of glibc 2.2 and later.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_LEN: usize = 48;
const ENTRY_LEN: usize = 24;
/// The older format, which precedes the newer one in caches of glibc before 2.32.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_HEADER_LEN: usize = 16;
const OLD_ENTRY_LEN: usize = 12;

/// The files of each library name in the cache's order, which prefers those for this processor. Empty
/// if the bytes are no cache; damaged entries are left out.
pub fn parse_ld_cache(bytes: &[u8]) -> HashMap<&str, Vec<&str>> {
    entries(bytes).unwrap_or_default()
}

fn entries(bytes: &[u8]) -> Option<HashMap<&str, Vec<&str>>> {
    let cache = newer_format(bytes)?;
    let count = u32_at(cache, MAGIC.len())? as usize;
    let table = cache.get(HEADER_LEN..)?;
    let mut found: HashMap<&str, Vec<&str>> = HashMap::new();
    for entry in table.chunks_exact(ENTRY_LEN).take(count) {
        // Flags, then the offsets of name and path in the cache.
        let text = |at: usize| string_at(cache, u32_at(entry, at)?.into());
        if let (Some(name), Some(path)) = (text(4), text(8)) {
            found.entry(name).or_default().push(path);
        }
    }
    Some(found)
}

fn newer_format(bytes: &[u8]) -> Option<&[u8]> {
    let start = match bytes.starts_with(OLD_MAGIC) {
        false => 0,
        true => {
            let count = u32_at(bytes, OLD_MAGIC.len())? as usize;
            OLD_HEADER_LEN.checked_add(count.checked_mul(OLD_ENTRY_LEN)?)?.next_multiple_of(8)
        }
    };
    bytes.get(start..).filter(|cache| cache.starts_with(MAGIC))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache of these names and files.
    pub(crate) fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.resize(HEADER_LEN, 0);
        let mut strings = Vec::new();
        let base = HEADER_LEN + entries.len() * ENTRY_LEN;
        for (name, path) in entries {
            let mut add = |text: &str| {
                let offset = (base + strings.len()) as u32;
                strings.extend(text.as_bytes());
                strings.push(0);
                offset
            };
            let (name, path) = (add(name), add(path));
            bytes.extend(0x0303u32.to_le_bytes());
            bytes.extend(name.to_le_bytes());
            bytes.extend(path.to_le_bytes());
            bytes.extend([0; 12]);
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn names_have_files_in_order() {
        let entries = [
            ("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
            ("libc.so.6", "/lib/i386-linux-gnu/libc.so.6"),
            ("libfabric.so.1", "/usr/lib/libfabric.so.1"),
        ];
        let bytes = cache(&entries);
        let found = parse_ld_cache(&bytes);
        assert_eq!(found["libc.so.6"], [entries[0].1, entries[1].1]);
        assert_eq!(found["libfabric.so.1"], [entries[2].1]);
        // The older format first: one entry, then padding to 8 bytes.
        let mut both = OLD_MAGIC.to_vec();
        both.extend(1u32.to_le_bytes());
        both.resize(32, 0);
        both.extend(&bytes);
        assert_eq!(parse_ld_cache(&both).len(), 2);
        assert!(parse_ld_cache(b"#!/bin/sh").is_empty());
    }

    proptest! {
        #[test]
        fn damaged_caches_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = cache(&[("liba.so", "/lib/liba.so"), ("libb.so", "/lib/libb.so")]);
            for (index, value) in changes {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            for (name, paths) in parse_ld_cache(&bytes) {
                prop_assert!(!name.is_empty() && !paths.is_empty());
            }
        }
    }
}
