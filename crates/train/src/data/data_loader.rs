//! Loads batches, optionally with prefetching.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::error::{DataError, Result};
use super::sampler::Sampler;
use super::source::Tokens;

/// A batch of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Inputs, row-major.
    pub inputs: Vec<u32>,
    /// Targets: the inputs shifted by one.
    pub targets: Vec<u32>,
    /// Number of sequences.
    pub batch: usize,
    /// Sequence length.
    pub sequence: usize,
}

/// Loads sequences of a dataset in the order of a sampler.
#[derive(Debug, Clone)]
pub struct DataLoader {
    tokens: Tokens,
    order: Sampler,
}

impl DataLoader {
    /// Of these tokens. The sampler must be of the same length.
    pub fn new(tokens: Tokens, order: Sampler) -> Self {
        Self { tokens, order }
    }

    /// The sampler.
    pub fn sampler(&self) -> &Sampler {
        &self.order
    }

    /// Loads the sequences of these indices.
    pub fn batch(&self, indices: impl IntoIterator<Item = u64>) -> Result<Batch> {
        let sequence = self.order.seq_len() as usize;
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

/// Loads batches in a background thread: an iterator over the batches of these lists of indices. An error is the
/// last item.
#[derive(Debug)]
pub struct Prefetcher {
    /// None while shutting down.
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts to load up to `ahead` batches in advance.
    pub fn new<I>(loader: DataLoader, lists: I, ahead: usize) -> Result<Self>
    where
        I: IntoIterator + Send + 'static,
        I::Item: IntoIterator<Item = u64>,
    {
        let (sender, receiver) = sync_channel(ahead);
        let thread = std::thread::Builder::new().name("read-ahead".to_owned());
        // Until the batches end, one fails, or the receiver is dropped.
        let thread = thread.spawn(move || {
            for list in lists {
                let batch = loader.batch(list);
                let failed = batch.is_err();
                if sender.send(batch).is_err() || failed {
                    return;
                }
            }
        });
        let failed = |error: std::io::Error| DataError::Prefetch { reason: error.to_string() };
        Ok(Self { batches: Some(receiver), thread: Some(thread.map_err(failed)?) })
    }
}

impl Iterator for Prefetcher {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(batch) = self.batches.as_ref()?.recv() {
            return Some(batch);
        }
        // A panic must not look like the end of the data.
        let ended = self.thread.take()?.join();
        let reason = "the loader thread panicked".to_owned();
        ended.is_err().then_some(Err(DataError::Prefetch { reason }))
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        // Dropping the receiver unblocks the sending thread.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(tokens: u32, seq_len: u64) -> DataLoader {
        let all: Vec<u32> = (0..tokens).collect();
        let order = Sampler::sequential(u64::from(tokens), seq_len).unwrap();
        DataLoader::new(Tokens::Memory(all.into()), order)
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
    fn prefetched_batches_equal_direct_ones() {
        let loader = loader(1000, 8);
        let lists: Vec<Vec<u64>> = (0..50).map(|step| vec![step, step + 3]).collect();
        let ahead = Prefetcher::new(loader.clone(), lists.clone(), 2).unwrap();
        let batches: Result<Vec<Batch>> = ahead.collect();
        let wanted: Result<Vec<Batch>> = lists.into_iter().map(|list| loader.batch(list)).collect();
        assert_eq!(batches.unwrap(), wanted.unwrap());
    }

    #[test]
    fn the_thread_ends_when_the_prefetcher_is_dropped() {
        let lists = (0u64..).map(|step| step..step + 2);
        let mut endless = Prefetcher::new(loader(1000, 8), lists, 1).unwrap();
        assert!(endless.next().unwrap().is_ok());
        // Hangs on failure.
        drop(endless);
    }

    #[test]
    fn an_error_is_the_last_item() {
        let short = DataLoader {
            tokens: Tokens::Memory(vec![1; 30].into()),
            order: Sampler::sequential(100, 8).unwrap(),
        };
        let ahead = Prefetcher::new(short, (0..12).map(|index| [index]), 1).unwrap();
        let read: Vec<Result<Batch>> = ahead.collect();
        assert_eq!(read.len(), 4);
        assert!(read[..3].iter().all(Result::is_ok));
        assert!(matches!(read[3], Err(DataError::OutOfRange { .. })));
    }

    #[test]
    fn a_panic_is_reported_as_an_error() {
        let lists = (0..3u64).map(|index| if index == 2 { panic!("expected") } else { [index] });
        let mut ahead = Prefetcher::new(loader(100, 8), lists, 1).unwrap();
        assert!(ahead.next().unwrap().is_ok() && ahead.next().unwrap().is_ok());
        assert!(matches!(ahead.next(), Some(Err(DataError::Prefetch { .. }))));
        assert!(ahead.next().is_none());
    }
}
