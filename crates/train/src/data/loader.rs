//! Batches of samples, read when they are asked for or ahead of that.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::error::{DataError, Result};
use super::order::Order;
use super::source::Tokens;

/// Samples that go through the model together, row after row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// What the model sees.
    pub inputs: Vec<u32>,
    /// What comes next after each input.
    pub targets: Vec<u32>,
    /// Samples.
    pub batch: usize,
    /// Tokens of each.
    pub sequence: usize,
}

/// Reads samples of some tokens in an order.
#[derive(Debug, Clone)]
pub struct Loader {
    tokens: Tokens,
    order: Order,
}

impl Loader {
    /// Of these tokens, in this order, which was made for as many.
    pub fn new(tokens: Tokens, order: Order) -> Self {
        Self { tokens, order }
    }

    /// The order of samples.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Reads the samples of these indices.
    pub fn batch(&self, indices: impl IntoIterator<Item = u64>) -> Result<Batch> {
        let sequence = self.order.context() as usize;
        let mut batch = Batch { sequence, ..Batch::default() };
        let mut sample = Vec::with_capacity(sequence + 1);
        for index in indices {
            self.tokens.read(self.order.range(index), &mut sample)?;
            batch.inputs.extend_from_slice(&sample[..sequence]);
            batch.targets.extend_from_slice(&sample[1..]);
            batch.batch += 1;
        }
        Ok(batch)
    }
}

/// Reads batches ahead in a thread: an iterator of the batches of these lists of indices. The first
/// error is the last item.
#[derive(Debug)]
pub struct Ahead {
    /// None when it is being ended.
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to read, so many batches ahead at most.
    pub fn new<I>(loader: Loader, lists: I, ahead: usize) -> Result<Self>
    where
        I: IntoIterator + Send + 'static,
        I::Item: IntoIterator<Item = u64>,
    {
        let (sender, receiver) = sync_channel(ahead);
        let thread = std::thread::Builder::new().name("read-ahead".to_owned());
        let thread = thread.spawn(move || fill(&loader, lists, &sender));
        let failed = |error: std::io::Error| DataError::Ahead { reason: error.to_string() };
        Ok(Self { batches: Some(receiver), thread: Some(thread.map_err(failed)?) })
    }
}

/// Sends batches until there are no more, one fails, or nobody wants them.
fn fill<I>(loader: &Loader, lists: I, sender: &SyncSender<Result<Batch>>)
where
    I: IntoIterator,
    I::Item: IntoIterator<Item = u64>,
{
    for list in lists {
        let batch = loader.batch(list);
        let failed = batch.is_err();
        if sender.send(batch).is_err() || failed {
            return;
        }
    }
}

impl Iterator for Ahead {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(batch) = self.batches.as_ref()?.recv() {
            return Some(batch);
        }
        // The thread is through; a fault of its own must not look like an end.
        let ended = self.thread.take()?.join();
        ended.is_err().then(|| Err(DataError::Ahead { reason: "its thread panicked".to_owned() }))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // A thread that waits to send hears that nobody receives.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(tokens: u32, context: u64) -> Loader {
        let all: Vec<u32> = (0..tokens).collect();
        let order = Order::straight(u64::from(tokens), context).unwrap();
        Loader::new(Tokens::Memory(all.into()), order)
    }

    #[test]
    fn targets_are_the_inputs_one_later() {
        let batch = loader(20, 3).batch([0, 2]).unwrap();
        assert_eq!(batch.inputs, [0, 1, 2, 6, 7, 8]);
        assert_eq!(batch.targets, [1, 2, 3, 7, 8, 9]);
        assert_eq!((batch.batch, batch.sequence), (2, 3));
        assert_eq!(loader(20, 3).batch(0..0).unwrap().batch, 0);
    }

    #[test]
    fn read_ahead_is_as_read_at_once() {
        let loader = loader(1000, 8);
        let lists: Vec<Vec<u64>> = (0..50).map(|step| vec![step, step + 3]).collect();
        let ahead = Ahead::new(loader.clone(), lists.clone(), 2).unwrap();
        let batches: Result<Vec<Batch>> = ahead.collect();
        let wanted: Result<Vec<Batch>> = lists.into_iter().map(|list| loader.batch(list)).collect();
        assert_eq!(batches.unwrap(), wanted.unwrap());
    }

    #[test]
    fn it_ends_when_it_is_dropped() {
        let mut endless =
            Ahead::new(loader(1000, 8), (0u64..).map(|step| step..step + 2), 1).unwrap();
        assert!(endless.next().unwrap().is_ok());
        // Would hang here.
        drop(endless);
    }

    #[test]
    fn errors_are_delivered_and_the_last() {
        let short = Loader {
            tokens: Tokens::Memory(vec![1; 30].into()),
            order: Order::straight(100, 8).unwrap(),
        };
        let ahead = Ahead::new(short, (0..12).map(|index| [index]), 1).unwrap();
        let read: Vec<Result<Batch>> = ahead.collect();
        assert_eq!(read.len(), 4);
        assert!(read[..3].iter().all(Result::is_ok));
        assert!(matches!(read[3], Err(DataError::OutOfRange { .. })));
    }

    #[test]
    fn a_thread_that_panics_is_no_end() {
        let lists = (0..3u64).map(|index| if index == 2 { panic!("as asked") } else { [index] });
        let mut ahead = Ahead::new(loader(100, 8), lists, 1).unwrap();
        assert!(ahead.next().unwrap().is_ok() && ahead.next().unwrap().is_ok());
        assert!(matches!(ahead.next(), Some(Err(DataError::Ahead { .. }))));
        assert!(ahead.next().is_none());
    }
}
