//! Opens and reads regular files. A FIFO would block, and a device may never end, so they are refused.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file, or a symbolic link to one, for reading. Does not block.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    Err(io::Error::other(format!("it is {}, not a regular file", describe(kind))))
}

/// Reads a regular file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let bytes = file.metadata()?.len();
    let too_large = |bytes| {
        io::Error::other(format!("it has {bytes} bytes, but such a file has at most {limit}"))
    };
    if bytes > limit {
        return Err(too_large(bytes));
    }
    let mut content = Vec::with_capacity(bytes as usize);
    // The file may grow while it is read.
    let bytes = file.take(limit.saturating_add(1)).read_to_end(&mut content)? as u64;
    if bytes > limit { Err(too_large(bytes)) } else { Ok(content) }
}

/// Reads a regular text file of at most `limit` bytes.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "a special file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn regular_files_and_links_to_them_are_read_up_to_the_limit() {
        let folder = TempDir::new();
        let file = folder.file("file", "four");
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read(&file, 4).unwrap(), b"four");
        assert_eq!(read_to_string(&link, 4).unwrap(), "four");
        let error = read(&file, 3).unwrap_err().to_string();
        assert_eq!(error, "it has 4 bytes, but such a file has at most 3");
        assert_eq!(read(&folder.0.join("none"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn special_files_are_refused_without_blocking() {
        let folder = TempDir::new();
        let fifo = folder.fifo("fifo");
        for (path, kind) in
            [(&*fifo, "a FIFO"), (Path::new("/dev/zero"), "a device"), (&folder.0, "a directory")]
        {
            let error = read(path, 1 << 20).unwrap_err();
            assert_eq!(error.to_string(), format!("it is {kind}, not a regular file"));
        }
    }
}
