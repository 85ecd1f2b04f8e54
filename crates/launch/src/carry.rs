//! The threads that listen to a rank: one for each of its streams, one for its end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use crate::lines::Splitter;
use crate::process;
use crate::queue::Queue;

/// What must not wait.
pub enum News {
    /// A rank is over, and waits to be asked for its status.
    Ended(u32),
    /// A stream of a rank is at its end.
    Closed(u32),
    /// A log misses what a rank wrote.
    LogCut(String),
}

/// What a rank wrote.
pub enum Output {
    /// A line, for people.
    Line { rank: u32, error: bool, text: String },
    /// All of it, for the log.
    Bytes { rank: u32, error: bool, bytes: Vec<u8> },
}

/// Where all that a rank wrote goes.
pub enum Log {
    /// Into a file.
    Kept(File),
    /// To whoever takes the output.
    Sent,
}

type Outlet = Arc<Queue<News, Output>>;

/// A thread, or an error where the limit on processes leaves none.
fn thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().stack_size(128 * 1024).spawn(work).map(drop)
}

/// Tells of the end of a rank's process.
pub fn end(pid: u32, outlet: Outlet, rank: u32) -> io::Result<()> {
    thread(move || {
        process::await_end(pid);
        outlet.tell(News::Ended(rank));
    })
}

/// Carries one stream of a rank: to its log at once, so that nothing is lost whatever becomes of
/// us, and line by line to people.
pub fn stream(
    mut stream: impl Read + Send + 'static,
    mut log: Log,
    outlet: Outlet,
    rank: u32,
    error: bool,
) -> io::Result<()> {
    thread(move || {
        let mut splitter = Splitter::default();
        let mut buffer = vec![0; 64 * 1024];
        let mut cut = false;
        loop {
            let bytes = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => &buffer[..n],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            // A full disk must not stop the rank; but it must be known.
            if let Err(why) = keep(&mut log, bytes, &outlet, rank, error)
                && !std::mem::replace(&mut cut, true)
            {
                let stream = if error { "err" } else { "out" };
                outlet.tell(News::LogCut(format!(
                    "the log rank-{rank}.{stream} misses what the rank wrote: {why}"
                )));
            }
            for text in splitter.push(bytes, Instant::now()) {
                outlet.write(Output::Line { rank, error, text });
            }
        }
        if let Some(text) = splitter.finish() {
            outlet.write(Output::Line { rank, error, text });
        }
        outlet.tell(News::Closed(rank));
    })
}

fn keep(log: &mut Log, bytes: &[u8], outlet: &Outlet, rank: u32, error: bool) -> io::Result<()> {
    match log {
        Log::Kept(file) => file.write_all(bytes),
        Log::Sent => {
            outlet.write(Output::Bytes { rank, error, bytes: bytes.to_vec() });
            Ok(())
        }
    }
}
