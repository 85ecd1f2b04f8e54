//! Shared libraries and caches of the loader, for tests.

use super::cache::{ENTRY_LEN, HEADER_LEN, MAGIC};
use super::elf::{SHT_DYNAMIC, SHT_DYNSYM};

/// A shared library with these symbols; `false`: undefined.
pub fn library(symbols: &[(&str, bool)]) -> Vec<u8> {
    library_with(symbols, &[])
}

/// A shared library with these symbols, and strings in the dynamic section by their tags.
pub fn library_with(symbols: &[(&str, bool)], entries: &[(u64, &str)]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut table = Vec::new();
    for (name, defined) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([0x11, 0, u8::from(*defined), 0]);
        table.extend([0; 16]);
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let mut dynamic = Vec::new();
    for (tag, value) in entries {
        dynamic.extend(tag.to_le_bytes());
        dynamic.extend((strings.len() as u64).to_le_bytes());
        strings.extend(value.as_bytes());
        strings.push(0);
    }
    dynamic.extend([0; 16]);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    // x86-64.
    file[0x12] = 62;
    file.extend(&table);
    file.extend(&strings);
    let dynamic_offset = file.len() as u64;
    file.extend(&dynamic);
    let sections = file.len() as u64;
    let header = |kind: u32, link: u32, offset: u64, size: usize| {
        let mut bytes = vec![0u8; 64];
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[0x18..0x20].copy_from_slice(&offset.to_le_bytes());
        bytes[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
        bytes[0x28..0x2c].copy_from_slice(&link.to_le_bytes());
        bytes
    };
    file.extend(header(0, 0, 0, 0));
    file.extend(header(SHT_DYNSYM, 2, 64, table.len()));
    file.extend(header(3, 0, 64 + table.len() as u64, strings.len()));
    file.extend(header(SHT_DYNAMIC, 2, dynamic_offset, dynamic.len()));
    file[0x28..0x30].copy_from_slice(&sections.to_le_bytes());
    file[0x3c] = 4;
    file
}

/// A cache of these names and files.
pub fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
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
