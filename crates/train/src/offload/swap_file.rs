//! A swap file: tensors are read and written by a background thread, in submission order.

use std::cell::Cell;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::error::hint;
use super::{OffloadError, Result};
use regatta_device::HostTensor;
use regatta_model::rank_bytes::IoBytes;

/// A swap file, removed on drop.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
    /// `None` only during drop.
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    io_bytes: Cell<IoBytes>,
}

struct Request {
    offset: u64,
    tensor: HostTensor,
    operation: IoOperation,
    done: SyncSender<Result<HostTensor>>,
}

#[derive(Clone, Copy)]
enum IoOperation {
    Read,
    Write,
}

/// A read or write in flight.
#[must_use = "errors are reported by `wait`"]
#[derive(Debug)]
pub struct PendingIo {
    done: Receiver<Result<HostTensor>>,
    path: PathBuf,
}

impl PendingIo {
    /// Waits for completion and returns the tensor.
    pub fn wait(self) -> Result<HostTensor> {
        let disconnected = |_| {
            let why = "the I/O thread panicked".to_owned();
            let (operation, hint) = ("access", "restart the training");
            let (offset, bytes) = (0, 0);
            Err(OffloadError::Io { file: self.path, offset, bytes, operation, why, hint })
        };
        self.done.recv().unwrap_or_else(disconnected)
    }
}

impl SwapFile {
    /// Creates a zeroed file and reserves all of its space, so that a full disk fails here.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let failed = |file: &Path, error: io::Error| {
            let (why, hint) = (error.to_string(), hint(&error));
            OffloadError::Create { file: file.to_owned(), bytes, why, hint }
        };
        let dir = path.parent().unwrap_or(Path::new(""));
        std::fs::create_dir_all(dir).map_err(|error| failed(path, error))?;
        let (path, file) = create_locked(path).map_err(|error| failed(path, error))?;
        let failed = |error| failed(&path, error);
        if let Err(error) = reserve(&file, bytes) {
            // The file is empty; the error matters more than a failed removal.
            let _ = std::fs::remove_file(&path);
            return Err(failed(error));
        }
        let (requests, queue) = channel();
        let thread = std::thread::Builder::new().name("offload".to_owned());
        let thread_path = path.clone();
        let thread = thread.spawn(move || serve(&file, &thread_path, &queue)).map_err(failed)?;
        let (requests, thread) = (Some(requests), Some(thread));
        Ok(Self { path, requests, thread, io_bytes: Cell::default() })
    }

    /// Starts to fill a tensor from the file, after copies by the device.
    pub fn read(&self, offset: u64, tensor: HostTensor) -> PendingIo {
        self.submit(offset, tensor, IoOperation::Read)
    }

    /// Starts to write a tensor to the file, after copies by the device.
    pub fn write(&self, offset: u64, tensor: HostTensor) -> PendingIo {
        self.submit(offset, tensor, IoOperation::Write)
    }

    /// Bytes of all reads and writes submitted so far.
    pub fn io_bytes(&self) -> IoBytes {
        self.io_bytes.get()
    }

    fn submit(&self, offset: u64, tensor: HostTensor, operation: IoOperation) -> PendingIo {
        let bytes = tensor.bytes() as u64;
        let io_bytes = match operation {
            IoOperation::Read => IoBytes { read: bytes, written: 0 },
            IoOperation::Write => IoBytes { read: 0, written: bytes },
        };
        self.io_bytes.set(self.io_bytes.get() + io_bytes);
        let (done, pending) = sync_channel(1);
        if let Some(requests) = &self.requests {
            // If the thread is gone, so is `done`, and `wait` reports it.
            let _ = requests.send(Request { offset, tensor, operation, done });
        }
        PendingIo { done: pending, path: self.path.clone() }
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Best effort: a leftover file is truncated by the next run.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Creates an empty file and locks it. Concurrent trainings may use the same directory: they get
/// numbered names. Unlocked leftovers of killed processes are reused.
fn create_locked(path: &Path) -> io::Result<(PathBuf, File)> {
    let open = |path: &Path| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    let numbered = |number: u32| match number {
        0 => path.to_owned(),
        _ => PathBuf::from(format!("{}.{number}", path.display())),
    };
    for number in 0..MAX_FILES {
        let path = numbered(number);
        let file = open(&path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                return Ok((path, file));
            }
            Err(TryLockError::WouldBlock) => {}
            // The file system has no locks: the process id makes the name unique.
            Err(TryLockError::Error(_)) => {
                let path = PathBuf::from(format!("{}-{}", path.display(), std::process::id()));
                let file = open(&path)?;
                file.set_len(0)?;
                return Ok((path, file));
            }
        }
    }
    Err(io::Error::other(format!("{MAX_FILES} files of this name are in use")))
}

/// Limit on files of one name in a directory.
const MAX_FILES: u32 = 1000;

/// Allocates all blocks of the file; on file systems without `fallocate`, sets its length only.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes),
        Err(error) => Err(error.into()),
    }
}

fn serve(file: &File, path: &Path, queue: &Receiver<Request>) {
    // After a failed write the contents are unknown: all later operations fail, too.
    let mut failed: Option<OffloadError> = None;
    for Request { offset, tensor, operation, done } in queue {
        let result = match &failed {
            Some(error) => Err(error.clone()),
            None => execute(file, path, offset, tensor, operation),
        };
        if let (IoOperation::Write, Err(error)) = (operation, &result) {
            failed = Some(error.clone());
        }
        // The caller may have dropped its `PendingIo`.
        let _ = done.send(result);
    }
}

fn execute(
    file: &File,
    path: &Path,
    offset: u64,
    mut tensor: HostTensor,
    operation: IoOperation,
) -> Result<HostTensor> {
    let bytes = tensor.bytes();
    let (result, operation) = match operation {
        IoOperation::Read => (file.read_exact_at(tensor.bytes_mut()?, offset), "read"),
        IoOperation::Write => (file.write_all_at(tensor.bytes_mut()?, offset), "write"),
    };
    let failed = |error: io::Error| {
        let (why, hint) = (error.to_string(), hint(&error));
        OffloadError::Io { file: path.to_owned(), offset, bytes, operation, why, hint }
    };
    result.map(|()| tensor).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use regatta_comm::DType;
    use regatta_device::tensor::Tensor;

    fn zeros() -> HostTensor {
        HostTensor::new(Tensor::zeros(4, DType::F32))
    }

    fn filled(value: f32) -> HostTensor {
        let mut tensor = zeros();
        tensor.view_mut().unwrap().as_slice::<f32>().fill(value);
        tensor
    }

    fn elements(mut tensor: HostTensor) -> Vec<f32> {
        tensor.view().unwrap().as_slice().to_vec()
    }

    #[test]
    fn reads_return_what_was_written_and_drop_removes_the_file() {
        let dir = TempDir::new();
        let file = SwapFile::create(&dir.0.join("one"), 64).unwrap();
        let mut tensor = zeros();
        tensor.view_mut().unwrap().as_slice::<f32>().copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        let write = file.write(16, tensor);
        let read = file.read(8, zeros());
        assert_eq!(elements(read.wait().unwrap()), [0.0, 0.0, 1.0, 2.0]);
        write.wait().unwrap();
        assert_eq!(file.io_bytes(), IoBytes { read: 16, written: 16 });
        assert!(dir.0.join("one").exists());
        drop(file);
        assert!(!dir.0.join("one").exists());
        assert_eq!(dir.names(), [""; 0]);
    }

    #[test]
    fn concurrent_files_of_one_name_are_separate_and_leftovers_are_reused() {
        let dir = TempDir::new();
        let files = [(); 2].map(|()| SwapFile::create(&dir.0.join("one"), 16).unwrap());
        for (file, value) in files.iter().zip([1.0, 2.0]) {
            file.write(0, filled(value)).wait().unwrap();
        }
        for (file, value) in files.iter().zip([1.0, 2.0]) {
            let read = file.read(0, filled(0.0)).wait().unwrap();
            assert_eq!(elements(read), [value; 4]);
        }
        drop(files);
        dir.file("one", [7; 99]);
        let file = SwapFile::create(&dir.0.join("one"), 16).unwrap();
        let read = file.read(0, filled(3.0)).wait().unwrap();
        assert_eq!(elements(read), [0.0; 4]);
        drop(file);
        assert_eq!(dir.names(), [""; 0]);
    }

    #[test]
    fn all_operations_fail_after_a_failed_write() {
        let dir = TempDir::new();
        let path = dir.file("read-only", [0; 16]);
        let file = File::open(&path).unwrap();
        let (requests, queue) = channel();
        let (read, write) = (IoOperation::Read, IoOperation::Write);
        let results = [read, write, read, write].map(|operation| {
            let (done, result) = sync_channel(1);
            let tensor = zeros();
            requests.send(Request { offset: 0, tensor, operation, done }).unwrap();
            result
        });
        drop(requests);
        serve(&file, &path, &queue);
        let [before, failed, read, written] = results.map(|result| result.recv().unwrap());
        assert!(before.is_ok());
        let error = failed.unwrap_err();
        assert!(error.to_string().contains("cannot write 16 bytes at offset 0: "), "{error}");
        assert_eq!([read, written].map(|result| result.unwrap_err()), [error.clone(), error]);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = TempDir::new();
        let file = SwapFile::create(&dir.0.join("short"), 8).unwrap();
        let error = file.read(0, zeros()).wait().unwrap_err().to_string();
        assert!(error.contains("short: cannot read 16 bytes at offset 0"), "{error}");
        let error = SwapFile::create(&dir.0.join("huge"), 1 << 62).unwrap_err().to_string();
        let expected = "huge: cannot create a swap file of 4611686018427387904 bytes";
        assert!(error.contains(expected), "{error}");
        assert!(!dir.0.join("huge").exists());
        let error = SwapFile::create(&dir.0.join("short/below"), 8).unwrap_err().to_string();
        assert!(error.contains("short/below: cannot create a swap file"), "{error}");
        drop(file);
        assert_eq!(dir.names(), [""; 0]);
    }
}
