//! The version of a file of NCCL or RCCL, from the text that it logs.

use std::io::{self, Read};

use memchr::memmem;

use crate::plugin::{CollectiveLibrary, Release};

/// Both libraries have this text before their version, after an N or R.
const TEXT: &[u8] = b"CCL version ";
/// Bytes after the text that have the version: `: 2.22.3-HEAD`.
const AFTER: usize = 32;
/// Size of the chunks: RCCL has a gigabyte.
const CHUNK: usize = 1 << 20;

/// The library and its version; `None` if the file is none of them.
pub fn library_version(mut file: impl Read) -> io::Result<Option<(CollectiveLibrary, String)>> {
    let finder = memmem::Finder::new(TEXT);
    let (mut window, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    loop {
        let read = match file.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        window.extend_from_slice(&chunk[..read]);
        // At the end of the file, what follows the text may be shorter.
        let complete = if read == 0 { window.len() } else { window.len().saturating_sub(AFTER) };
        let found = finder.find_iter(&window).filter(|at| at + TEXT.len() <= complete);
        if let Some(version) = found.filter_map(|at| version_at(&window, at)).next() {
            return Ok(Some(version));
        }
        if read == 0 {
            return Ok(None);
        }
        let kept = window.len().min(AFTER + TEXT.len() + 1);
        window.drain(..window.len() - kept);
    }
}

/// The release of a library of this version.
pub fn release_of(library: CollectiveLibrary, version: &str) -> Option<&'static Release> {
    match library {
        CollectiveLibrary::Nccl => Release::of_nccl(version),
        CollectiveLibrary::Rccl => Release::of_rccl(version),
    }
}

fn version_at(window: &[u8], at: usize) -> Option<(CollectiveLibrary, String)> {
    let library = match window.get(at.checked_sub(1)?)? {
        b'N' => CollectiveLibrary::Nccl,
        b'R' => CollectiveLibrary::Rccl,
        _ => return None,
    };
    let after = window[at + TEXT.len()..].iter().skip_while(|byte| b": ".contains(byte));
    let digits = after.take(AFTER).take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    let version: String = digits.map(|byte| char::from(*byte)).collect();
    // Others are formats, such as `NCCL version %d`.
    version.contains('.').then_some((library, version))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file that is read in parts of this size.
    struct Parts<'a>(&'a [u8], usize);

    impl Read for Parts<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(self.0.len()).min(buffer.len());
            buffer[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn version(file: &[u8], part: usize) -> Option<(CollectiveLibrary, String)> {
        library_version(Parts(file, part)).unwrap()
    }

    #[test]
    fn versions_are_those_of_the_log() {
        let nccl = Some((CollectiveLibrary::Nccl, "2.28.9".to_owned()));
        let file = b"\x7fELF NCCL version %d.%d\0NCCL version 2.28.9+cuda13.0\0";
        assert_eq!(version(file, 1000), nccl);
        assert_eq!(version(b"NCCL version 2.28.9", 1000), nccl, "at the end");
        let rccl = Some((CollectiveLibrary::Rccl, "2.22.3".to_owned()));
        assert_eq!(version(b"RCCL version : 2.22.3-HEAD", 1000), rccl);
        assert_eq!(version(b"CCL version 2.1 no", 1000), None);
        assert_eq!(version(b"", 1), None);
        assert_eq!(
            release_of(CollectiveLibrary::Rccl, "2.22.3").unwrap().name(),
            "RCCL of ROCm 6.4"
        );
    }

    proptest! {
        #[test]
        fn versions_are_found_at_any_position(
            before in prop::collection::vec(any::<u8>(), 0..200),
            after in prop::collection::vec(any::<u8>(), 0..200),
            part in 1usize..100,
        ) {
            prop_assume!(memmem::find(&before, TEXT).is_none());
            let file = [&before[..], b"NCCL version 2.28.9+cuda13.0\0", &after].concat();
            let expected = Some((CollectiveLibrary::Nccl, "2.28.9".to_owned()));
            prop_assert_eq!(version(&file, part), expected);
        }
    }
}
