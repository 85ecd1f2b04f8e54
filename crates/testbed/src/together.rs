//! The same for every host, at once.

use crate::error::TestbedError;
use std::thread::{Builder, scope};

/// Does `work` for all items, each in a thread of its own, and gives the results in their order,
/// or the first error when all have ended.
pub(crate) fn together<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, TestbedError> + Sync,
) -> Result<Vec<R>, TestbedError> {
    let work = &work;
    scope(|scope| {
        let threads: Vec<_> = items
            .iter()
            .map(|item| Builder::new().spawn_scoped(scope, move || work(item)))
            .collect();
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| {
                let thread = thread.map_err(|source| TestbedError::Start {
                    command: "a thread for a host".to_owned(),
                    source,
                })?;
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        results.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_an_error_is_the_first_one() {
        assert_eq!(together(&[3, 1, 2], |n| Ok(n * 2)).unwrap(), [6, 2, 4]);
        let fails = |n: &u32| match n {
            1 => Ok(*n),
            n => Err(TestbedError::Settings(n.to_string())),
        };
        let error = together(&[1, 7, 8], fails).unwrap_err();
        assert!(error.to_string().ends_with('7'), "{error}");
    }
}
