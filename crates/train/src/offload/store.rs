//! A file of numbers that is read and written in the background, in the order of the asking.

use std::cell::Cell;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::StoreError;
use super::error::hint;
use regatta_device::memory::Tensor;
use regatta_predict::moved::Moved;

/// A file, which is removed when this is dropped.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    moved: Cell<Moved>,
}

/// A tensor on its way between memory and file.
struct Job {
    at: u64,
    tensor: Tensor,
    what: Way,
    done: SyncSender<Result<Tensor, StoreError>>,
}

#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

/// Something that is being read or written.
#[must_use = "whether it went well is known when it was waited for"]
#[derive(Debug)]
pub struct Ticket {
    done: Receiver<Result<Tensor, StoreError>>,
    path: PathBuf,
}

impl Ticket {
    /// Waits for the end, and gives the tensor back.
    pub fn wait(self) -> Result<Tensor, StoreError> {
        let gone = |_| {
            let (why, hint) = ("who did it is gone".to_owned(), "start again");
            let what = "read or written";
            Err(StoreError::Use { file: self.path, at: 0, bytes: 0, what, why, hint })
        };
        self.done.recv().unwrap_or_else(gone)
    }
}

impl Store {
    /// A file of zeros with all the room that it will need, so that a full disk shows now.
    pub fn new(folder: &Path, name: &str, bytes: u64) -> Result<Self, StoreError> {
        let path = folder.join(name);
        let wrong = |file: &Path, error: io::Error| {
            let (why, hint) = (error.to_string(), hint(&error));
            StoreError::Make { file: file.to_owned(), bytes, why, hint }
        };
        std::fs::create_dir_all(folder).map_err(|error| wrong(&path, error))?;
        let (path, file) = own_file(&path).map_err(|error| wrong(&path, error))?;
        let wrong = |error| wrong(&path, error);
        if let Err(error) = reserve(&file, bytes) {
            // There is nothing in it.
            let _ = std::fs::remove_file(&path);
            return Err(wrong(error));
        }
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new().name("offload".to_owned());
        let name = path.clone();
        let thread = thread.spawn(move || work(&file, &name, &queue)).map_err(wrong)?;
        Ok(Self { path, jobs: Some(jobs), thread: Some(thread), moved: Cell::default() })
    }

    /// Fills a tensor with what is there.
    pub fn read(&self, at: u64, tensor: Tensor) -> Ticket {
        self.ask(at, tensor, Way::In)
    }

    /// Puts a tensor's numbers there.
    pub fn write(&self, at: u64, tensor: Tensor) -> Ticket {
        self.ask(at, tensor, Way::Out)
    }

    /// What was read and written so far, with what is still to be done of it.
    pub fn moved(&self) -> Moved {
        self.moved.get()
    }

    fn ask(&self, at: u64, tensor: Tensor, what: Way) -> Ticket {
        let bytes = (tensor.len() * tensor.format().size()) as u64;
        let moved = match what {
            Way::In => Moved { read: bytes, written: 0 },
            Way::Out => Moved { read: 0, written: bytes },
        };
        self.moved.set(self.moved.get() + moved);
        let (done, ticket) = sync_channel(1);
        if let Some(jobs) = &self.jobs {
            // If it is gone, so is the other end of the ticket.
            let _ = jobs.send(Job { at, tensor, what, done });
        }
        Ticket { done: ticket, path: self.path.clone() }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
        // Nobody else knows of it; what cannot be removed is in the way of nobody.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An empty file that nobody else has open: other trainings may use the folder, too. What a killed
/// one has left there is nobody's.
fn own_file(path: &Path) -> io::Result<(PathBuf, File)> {
    let open = |path: &Path| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    let named = |number: u32| match number {
        0 => path.to_owned(),
        _ => PathBuf::from(format!("{}.{number}", path.display())),
    };
    for number in 0..MOST {
        let path = named(number);
        let file = open(&path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                return Ok((path, file));
            }
            Err(TryLockError::WouldBlock) => {}
            // Where nobody can lock, nobody else has this number.
            Err(TryLockError::Error(_)) => {
                let path = PathBuf::from(format!("{}-{}", path.display(), std::process::id()));
                let file = open(&path)?;
                file.set_len(0)?;
                return Ok((path, file));
            }
        }
    }
    Err(io::Error::other(format!("{MOST} others of this name are in use")))
}

/// Trainings that use a folder at once.
const MOST: u32 = 1000;

/// All of the room, or on file systems that cannot promise it, the length.
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

fn work(file: &File, path: &Path, queue: &Receiver<Job>) {
    // After a write that failed nobody knows what is there, so nobody gets it.
    let mut failed: Option<StoreError> = None;
    for Job { at, tensor, what, done } in queue {
        let ended = match &failed {
            Some(error) => Err(error.clone()),
            None => carry(file, path, at, tensor, what),
        };
        if let (Way::Out, Err(error)) = (what, &ended) {
            failed = Some(error.clone());
        }
        // Whoever does not wait does not want to know.
        let _ = done.send(ended);
    }
}

fn carry(
    file: &File,
    path: &Path,
    at: u64,
    tensor: Tensor,
    what: Way,
) -> Result<Tensor, StoreError> {
    let format = tensor.format();
    let mut buffer = tensor.into_buffer();
    let bytes = buffer.len();
    let (ended, what) = match what {
        Way::In => (file.read_exact_at(buffer.bytes_mut(), at), "read"),
        Way::Out => (file.write_all_at(buffer.bytes(), at), "written"),
    };
    let wrong = |error: io::Error| {
        let (why, hint) = (error.to_string(), hint(&error));
        StoreError::Use { file: path.to_owned(), at, bytes, what, why, hint }
    };
    ended.map(|()| Tensor::from_buffer(buffer, format)).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_device::memory::Format;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("regatta-store-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_is_written_is_read_again_and_removed_at_the_end() {
        let folder = folder("again");
        let store = Store::new(&folder, "one", 64).unwrap();
        let mut tensor = Tensor::zeroed(4, Format::F32);
        tensor.view_mut().host::<f32>().copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        let written = store.write(16, tensor);
        let read = store.read(8, Tensor::zeroed(4, Format::F32));
        assert_eq!(read.wait().unwrap().view().host::<f32>(), [0.0, 0.0, 1.0, 2.0]);
        written.wait().unwrap();
        assert_eq!(store.moved(), Moved { read: 16, written: 16 });
        assert!(folder.join("one").exists());
        drop(store);
        assert!(!folder.join("one").exists());
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn two_of_the_same_name_have_a_file_each() {
        let folder = folder("both");
        let all = [(); 2].map(|()| Store::new(&folder, "one", 16).unwrap());
        let tensor = |number: f32| {
            let mut tensor = Tensor::zeroed(4, Format::F32);
            tensor.view_mut().host::<f32>().fill(number);
            tensor
        };
        for (store, number) in all.iter().zip([1.0, 2.0]) {
            store.write(0, tensor(number)).wait().unwrap();
        }
        for (store, number) in all.iter().zip([1.0, 2.0]) {
            let read = store.read(0, tensor(0.0)).wait().unwrap();
            assert_eq!(read.view().host::<f32>(), [number; 4]);
        }
        drop(all);
        // What a killed one has left is used again.
        std::fs::write(folder.join("one"), [7; 99]).unwrap();
        let store = Store::new(&folder, "one", 16).unwrap();
        let read = store.read(0, tensor(3.0)).wait().unwrap();
        assert_eq!(read.view().host::<f32>(), [0.0; 4]);
        drop(store);
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn what_could_not_be_written_is_not_read_again() {
        let path = folder("failed");
        std::fs::write(&path, [0; 16]).unwrap();
        // This one can be read only.
        let file = File::open(&path).unwrap();
        let (jobs, queue) = channel();
        let tickets = [Way::In, Way::Out, Way::In, Way::Out].map(|what| {
            let (done, ticket) = sync_channel(1);
            jobs.send(Job { at: 0, tensor: Tensor::zeroed(4, Format::F32), what, done }).unwrap();
            ticket
        });
        drop(jobs);
        work(&file, &path, &queue);
        let [before, failed, read, written] = tickets.map(|ticket| ticket.recv().unwrap());
        assert!(before.is_ok());
        let error = failed.unwrap_err();
        assert!(error.to_string().contains(" cannot be written: "), "{error}");
        assert_eq!([read.unwrap_err(), written.unwrap_err()], [error.clone(), error]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn errors_name_the_file() {
        let folder = folder("errors");
        let store = Store::new(&folder, "short", 8).unwrap();
        let error = store.read(0, Tensor::zeroed(4, Format::F32)).wait().unwrap_err();
        let told = error.to_string();
        assert!(told.contains("short: 16 bytes from byte 0 on cannot be read"), "{told}");
        let error = Store::new(&folder, "huge", 1 << 62).unwrap_err().to_string();
        assert!(error.contains("huge: cannot be made with 4611686018427387904 bytes"), "{error}");
        assert!(!folder.join("huge").exists());
        let error = Store::new(&folder.join("short"), "below", 8).unwrap_err().to_string();
        assert!(error.contains("short/below: cannot be made"), "{error}");
        drop(store);
        std::fs::remove_dir(&folder).unwrap();
    }
}
