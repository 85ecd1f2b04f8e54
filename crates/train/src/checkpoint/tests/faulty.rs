//! A disk with fault injection at the nth operation.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::checkpoint::disk::{Disk, Output, SystemDisk};

/// What happens at the nth operation.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails with this errno.
    Error(i32),
    /// It and all later ones do nothing, as after a power failure.
    Dead,
    /// The process is killed.
    Kill,
    /// Nothing, but only this many bytes are free.
    LittleSpace(u64),
}

#[derive(Clone)]
pub struct Faulty {
    state: Arc<FaultState>,
}

struct FaultState {
    at: usize,
    fault: Fault,
    count: AtomicUsize,
    log: Mutex<Vec<String>>,
}

impl Faulty {
    pub fn new(at: usize, fault: Fault) -> Self {
        let (count, log) = (AtomicUsize::new(0), Mutex::default());
        Self { state: Arc::new(FaultState { at, fault, count, log }) }
    }

    /// Operations so far.
    pub fn count(&self) -> usize {
        self.state.count.load(Ordering::SeqCst)
    }

    /// The operations, each with its file name.
    pub fn log(&self) -> Vec<String> {
        self.state.log.lock().unwrap().clone()
    }

    fn step<T>(
        &self,
        what: &str,
        path: &Path,
        half: impl FnOnce(),
        full: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let number = self.state.count.fetch_add(1, Ordering::SeqCst);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.state.log.lock().unwrap().push(format!("{what} {name}"));
        let FaultState { at, fault, .. } = *self.state;
        match fault {
            Fault::Error(error) if number == at => {
                half();
                Err(io::Error::from_raw_os_error(error))
            }
            Fault::Dead if number >= at => {
                if number == at {
                    half();
                }
                Err(io::Error::other("no power"))
            }
            Fault::Kill if number == at => {
                half();
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                unreachable!("killed");
            }
            _ => full(),
        }
    }
}

/// Removes half of a directory's contents.
fn remove_half(path: &Path) {
    let mut names = SystemDisk.list(path).unwrap_or_default();
    names.sort();
    for name in names.iter().take(names.len() / 2) {
        let _ = std::fs::remove_file(path.join(name));
    }
}

impl Disk for Faulty {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.step("make", path, || (), || SystemDisk.create_dir(path))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let file = self.step("create", path, || (), || SystemDisk.create(path))?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.to_owned(), file }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.step("read", path, || (), || SystemDisk.read(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.step("list", path, || (), || SystemDisk.list(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename", from, || (), || SystemDisk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step("remove", path, || (), || SystemDisk.remove(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.step("remove", path, || remove_half(path), || SystemDisk.remove_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step("sync", path, || (), || SystemDisk.sync_dir(path))
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        match self.state.fault {
            Fault::LittleSpace(bytes) => Some(bytes),
            _ => SystemDisk.free_bytes(path),
        }
    }
}

struct FaultyFile {
    disk: Faulty,
    path: std::path::PathBuf,
    file: Box<dyn Output>,
}

impl Output for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (disk, file) = (&self.disk, std::cell::RefCell::new(&mut self.file));
        let half = || {
            let _ = file.borrow_mut().write(&bytes[..bytes.len() / 2]);
        };
        disk.step("write", &self.path, half, || file.borrow_mut().write(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        let file = &mut self.file;
        self.disk.step("sync", &self.path, || (), || file.sync())
    }
}
