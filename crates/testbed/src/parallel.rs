//! Runs the same work for all hosts in parallel.

use crate::error::TestbedError;
use std::thread::{Builder, ScopedJoinHandle, scope};

/// Applies `work` to all items, one thread each. Returns the results in order, or the first error
/// after all have finished.
pub(crate) fn parallel_map<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, TestbedError> + Sync,
) -> Result<Vec<R>, TestbedError> {
    let work = &work;
    scope(|scope| {
        let spawn = |item| Builder::new().spawn_scoped(scope, move || work(item));
        let threads: Vec<_> = items.iter().map(spawn).collect();
        let join = |thread: std::io::Result<ScopedJoinHandle<'_, _>>| {
            let command = "thread of a host".to_owned();
            let thread = thread.map_err(|source| TestbedError::Start { command, source })?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let results: Vec<_> = threads.into_iter().map(join).collect();
        results.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_the_first_error_is_returned() {
        assert_eq!(parallel_map(&[3, 1, 2], |n| Ok(n * 2)).unwrap(), [6, 2, 4]);
        let fails = |n: &u32| match n {
            1 => Ok(*n),
            n => Err(TestbedError::InvalidConfig(n.to_string())),
        };
        let error = parallel_map(&[1, 7, 8], fails).unwrap_err();
        assert!(error.to_string().ends_with('7'), "{error}");
    }
}
