//! The built-in dataset, tinyshakespeare: 1.1 MB of Shakespeare's plays, in the public domain.

use std::path::PathBuf;

use super::error::{DataError, Result};
use super::source::DataDirs;
use super::{beside, sha256};

/// Its name.
pub const NAME: &str = "tinyshakespeare";
/// Another name of it.
pub const ALIAS: &str = "builtin";

/// The text, compressed by `gzip -9n`.
static COMPRESSED: &[u8] = include_bytes!("../../data/tinyshakespeare.txt.gz");
/// Size of a gzip header without a file name, and of the trailer with checksum and length.
const GZIP_FRAME: (usize, usize) = (10, 8);
/// SHA-256 of the text.
const SHA256: &str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";

/// Whether this is the name of the built-in dataset.
pub fn is_name(data: &str) -> bool {
    data == NAME || data == ALIAS
}

/// The text.
pub fn text() -> String {
    let (header, trailer) = GZIP_FRAME;
    let deflated = &COMPRESSED[header..COMPRESSED.len() - trailer];
    let bytes = miniz_oxide::inflate::decompress_to_vec(deflated);
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.unwrap_or_else(|| unreachable!("a test decompresses the embedded text"))
}

/// The text as a file in the cache, for `regatta data prepare`.
pub fn file(dirs: &DataDirs) -> Result<PathBuf> {
    let cache = dirs.cache()?;
    let path = cache.join(format!("{NAME}.txt"));
    if path.is_file() && sha256(&path, |_| Ok(()))? == SHA256 {
        return Ok(path);
    }
    std::fs::create_dir_all(cache).map_err(DataError::io("create", cache))?;
    // Several processes may write it: each its own file, and the last rename wins.
    let part = beside(&path, "part");
    std::fs::write(&part, text()).map_err(DataError::io("write", &part))?;
    std::fs::rename(&part, &path).map_err(DataError::io("rename to", &path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn the_text_is_extracted_once_and_again_if_it_was_changed() {
        let folder = TempDir::new();
        let dirs = DataDirs { cache: Some(folder.0.join("cache")) };
        let path = file(&dirs).unwrap();
        assert_eq!(sha256(&path, |_| Ok(())).unwrap(), SHA256);
        let modified = || std::fs::metadata(&path).unwrap().modified().unwrap();
        let before = modified();
        assert_eq!((file(&dirs).unwrap(), modified()), (path.clone(), before));
        std::fs::write(&path, "not the bard").unwrap();
        assert_eq!(std::fs::read_to_string(file(&dirs).unwrap()).unwrap(), text());
        assert_eq!(std::fs::read_dir(folder.0.join("cache")).unwrap().count(), 1);
    }
}
