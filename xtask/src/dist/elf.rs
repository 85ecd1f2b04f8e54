//! The C library that a binary needs.

/// The newest version of glibc in the names of symbol versions, such as `GLIBC_2.28`: major and minor.
pub fn newest_glibc(binary: &[u8]) -> Option<[u32; 2]> {
    const PREFIX: &[u8] = b"\0GLIBC_";
    let starts = binary.windows(PREFIX.len()).enumerate();
    let names = starts.filter(|(_, window)| *window == PREFIX).filter_map(|(at, _)| {
        let name = &binary[at + PREFIX.len()..];
        // Names end with a zero.
        std::str::from_utf8(&name[..name.iter().position(|byte| *byte == 0)?]).ok()
    });
    names.filter_map(version).max()
}

/// Major and minor of `2.28` or `2.2.5`.
fn version(text: &str) -> Option<[u32; 2]> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        let names = b"x\0GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_PRIVATE\0GLIBC_2.9\0memcpy\0";
        assert_eq!(newest_glibc(names), Some([2, 28]));
        assert_eq!(newest_glibc(b"GLIBC_2.99\0"), None);
        assert_eq!(newest_glibc(b"\0GLIBC_2.3"), None);
        assert_eq!(newest_glibc(b""), None);
    }
}
