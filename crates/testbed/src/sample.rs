//! Long lists of cases, of which the tests run some and `cargo xtask accept` all.

/// Set by `cargo xtask accept`: the number of cases, or all.
pub const TEST_CASES: &str = "REGATTA_TEST_CASES";

/// Whether all cases are to run.
pub fn all_cases() -> bool {
    std::env::var_os(TEST_CASES).is_some()
}

/// Every `step`-th case from the first, or all if [`TEST_CASES`] is set.
pub fn sample_cases<T>(cases: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(if all_cases() { 1 } else { step })
}
