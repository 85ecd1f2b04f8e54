//! A communicator for host memory that accepts device buffers: it copies them to the host and back.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, current};

use regatta_comm::error::Peer;
use regatta_comm::{Buffer, Call, Comm, Event, OwnedCall, Pending, Result};

/// Stages device buffers through host memory. A thread runs the calls in order.
pub struct StagedComm {
    inner: Arc<dyn Comm>,
    /// Closed when the communicator is dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce() + Send>;

impl StagedComm {
    pub fn new(inner: Arc<dyn Comm>) -> Self {
        let (jobs, queue) = channel::<Job>();
        let thread = std::thread::spawn(move || queue.into_iter().for_each(|job| job()));
        Self { inner, jobs: Some(jobs), thread: Some(thread) }
    }
}

/// Waits for the thread, which may still hold buffers of calls that have completed.
impl Drop for StagedComm {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != current().id()) {
            let _ = thread.join();
        }
    }
}

/// Runs a call on host copies of its buffers.
fn run_staged(inner: &dyn Comm, call: &mut OwnedCall) -> Result {
    let mut staged = OwnedCall {
        kind: call.kind,
        dtype: call.dtype,
        op: call.op,
        root: call.root,
        tag: call.tag,
        counts: call.counts.clone(),
        input: call.input.as_ref().map(to_host).transpose()?,
        output: to_host(&call.output)?,
    };
    inner.run_owned(std::slice::from_mut(&mut staged), 1)?;
    call.output.copy_from_host(staged.output.bytes())
}

fn to_host(buffer: &Buffer) -> Result<Buffer> {
    let mut host = Buffer::zeroed(buffer.len());
    buffer.copy_to_host(host.bytes_mut())?;
    Ok(host)
}

impl Comm for StagedComm {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn peer(&self, rank: u32) -> Peer {
        self.inner.peer(rank)
    }

    fn run(&self, call: Call<'_>) -> Result {
        self.enqueue(Vec::new(), &[]).event().wait()?;
        self.inner.run(call)
    }

    fn run_owned(&self, calls: &mut [OwnedCall], times: u32) -> Result {
        self.enqueue(Vec::new(), &[]).event().wait()?;
        let mut run = || calls.iter_mut().try_for_each(|call| run_staged(&*self.inner, call));
        (0..times).try_for_each(|_| run())
    }

    fn enqueue(&self, mut calls: Vec<OwnedCall>, after: &[Event]) -> Pending {
        let (pending, complete) = Pending::new();
        let (inner, after) = (self.inner.clone(), after.to_vec());
        let run = move || {
            after.iter().try_for_each(Event::wait)?;
            calls.iter_mut().try_for_each(|call| run_staged(&*inner, call))?;
            Ok(calls)
        };
        self.jobs.as_ref().unwrap().send(Box::new(|| complete(run()))).unwrap();
        pending
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>> {
        let group = self.inner.split(colour, key)?;
        Ok(group.map(|inner| -> Box<dyn Comm> { Box::new(Self::new(inner.into())) }))
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }

    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }
}
