//! Runs checks: panics become errors that name the case.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use regatta_device::ops::Device;
use regatta_device::random;

/// Attempts to find a smaller case that fails.
const MAX_SHRINK_ITERS: u32 = 200;

/// Creates a device.
pub type MakeDevice<'a> = &'a dyn Fn() -> Box<dyn Device>;

/// A named check of a device.
pub struct Check<'a> {
    /// Name, such as `random linear`.
    pub name: String,
    run: Box<dyn Fn() -> Result<(), String> + 'a>,
}

impl<'a> Check<'a> {
    /// Runs it on a new device. The error names the cases that failed.
    pub fn run(&self) -> Result<(), String> {
        (self.run)().map_err(|failures| format!("{}: {failures}", self.name))
    }

    /// Random cases, from a seed. A failed one is shrunk.
    pub(crate) fn random<S>(
        name: &str,
        make_device: MakeDevice<'a>,
        (cases, seed): (u32, u64),
        strategy: S,
        check: impl Fn(&dyn Device, &S::Value, u64) + 'a,
    ) -> Self
    where
        S: Strategy + 'a,
    {
        let run = move || {
            let (device, is_lost) = (make_device(), Cell::new(false));
            let mut runner = test_runner(cases, seed);
            let result = runner.run(&(&strategy, any::<u64>()), |(case, seed)| {
                // A lost device fails every case: the first one is reported, not the smallest.
                if is_lost.get() {
                    return Ok(());
                }
                run_case(&*device, || check(&*device, &case, seed)).map_err(|failure| {
                    is_lost.set(failure.is_device_lost);
                    TestCaseError::fail(failure.text)
                })
            });
            result.map_err(|error| match error {
                TestError::Fail(reason, (case, seed)) => describe(reason.message(), &case, seed),
                TestError::Abort(reason) => reason.message().to_owned(),
            })
        };
        Self { name: format!("random {name}"), run: Box::new(run) }
    }

    /// Fixed cases.
    pub(crate) fn fixed<T: Debug + 'a>(
        name: &str,
        make_device: MakeDevice<'a>,
        seed: u64,
        cases: impl IntoIterator<Item = T>,
        check: impl Fn(&dyn Device, &T, u64) + 'a,
    ) -> Self {
        let cases: Vec<T> = cases.into_iter().collect();
        let run = move || {
            let (device, mut failures) = (make_device(), Vec::new());
            for (case, index) in cases.iter().zip(0..) {
                let seed = random::key(seed, &[index]);
                let Err(failure) = run_case(&*device, || check(&*device, case, seed)) else {
                    continue;
                };
                failures.push(describe(&failure.text, case, seed));
                if failure.is_device_lost {
                    break;
                }
            }
            if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
        };
        Self { name: format!("fixed {name}"), run: Box::new(run) }
    }
}

/// Runs all checks, also after a failure. The error has one line per failed case.
pub fn run_checks<'a>(checks: impl IntoIterator<Item = Check<'a>>) -> Result<(), String> {
    let results: Vec<_> = checks.into_iter().map(|check| check.run()).collect();
    if results.is_empty() {
        return Err("no check was selected".to_owned());
    }
    let failures: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// A runner whose cases depend on the seed only.
fn test_runner(cases: u32, seed: u64) -> TestRunner {
    let config = Config {
        cases,
        max_shrink_iters: MAX_SHRINK_ITERS,
        failure_persistence: None,
        ..Config::default()
    };
    let words = [0, 1, 2, 3].map(|word| random::key(seed, &[word]).to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, words.as_flattened()))
}

struct Failure {
    text: String,
    is_device_lost: bool,
}

/// Runs a case. An error of the device has priority: results are meaningless after it.
fn run_case(device: &dyn Device, check: impl FnOnce()) -> Result<(), Failure> {
    let result = catch_unwind(AssertUnwindSafe(check));
    device
        .synchronize()
        .map_err(|error| Failure { text: error.to_string(), is_device_lost: true })?;
    result.map_err(|panic| Failure { text: panic_text(&*panic), is_device_lost: false })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

/// The reason with the case, unless it names it already.
fn describe(reason: &str, case: &dyn Debug, seed: u64) -> String {
    let case = format!("{case:?}");
    match reason.contains(&case) {
        true => format!("{reason} (seed {seed})"),
        false => format!("{case}: {reason} (seed {seed})"),
    }
}
