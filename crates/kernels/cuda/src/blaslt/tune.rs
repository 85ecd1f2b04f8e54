//! Autotuning: the heuristic's first choice may be much slower than the fastest of its proposals.

use std::ffi::c_int;
use std::sync::Arc;

use regatta_comm::gpu_runtime::{MEMCPY_DEFAULT, Runtime, SUCCESS, Stream, TimingEvent};

use super::gemm::{Gemm, GemmArgs};
use crate::runtime_memory::RuntimeMemory;

/// Proposals of the heuristic that are timed.
pub(crate) const MAX_CANDIDATES: usize = 16;

/// GEMMs with fewer floating-point operations take microseconds, whatever their algorithm.
const MIN_FLOPS: f64 = 1e8;

/// Launches of a candidate in the first round.
const SCREENING_LAUNCHES: usize = 2;
/// Candidates that are timed again.
const FINALISTS: usize = 4;
/// Rounds in which every finalist is timed once, so that a drift of the clock rate affects all.
const FINAL_ROUNDS: usize = 3;
/// Duration of one measurement in the final rounds.
const FINAL_MS: f32 = 2.0;
/// Launches of one measurement in the final rounds.
const MAX_FINAL_LAUNCHES: f32 = 8.0;

/// Whether tuning a GEMM is worth its time.
pub(crate) fn is_worthwhile(gemm: &Gemm) -> bool {
    gemm.flops() >= MIN_FLOPS
}

/// The index of the fastest of `count` candidates. `time_ms` launches a candidate some times and returns
/// the time of one launch, or `None` if the candidate fails. `None` if all fail.
pub(crate) fn fastest(
    count: usize,
    mut time_ms: impl FnMut(usize, usize) -> Option<f32>,
) -> Option<usize> {
    let mut screened: Vec<(f32, usize)> = (0..count)
        .filter_map(|candidate| Some((time_ms(candidate, SCREENING_LAUNCHES)?, candidate)))
        .collect();
    screened.sort_by(|a, b| a.0.total_cmp(&b.0));
    screened.truncate(FINALISTS);
    let shortest = screened.first()?.0;
    let launches = (FINAL_MS / shortest).clamp(1.0, MAX_FINAL_LAUNCHES) as usize;
    let mut finalists: Vec<(f32, usize)> = screened.iter().map(|(_, at)| (0.0, *at)).collect();
    for _ in 0..FINAL_ROUNDS {
        finalists.retain_mut(|(total, candidate)| match time_ms(*candidate, launches) {
            Some(ms) => {
                *total += ms;
                true
            }
            None => false,
        });
    }
    finalists.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}

/// The average time of `launches` calls of `launch`, after one that is not timed. `None` if a launch
/// fails. Waits for the stream, which must be one of the current device.
pub(crate) fn average_ms(
    runtime: &Arc<Runtime>,
    stream: Stream,
    launches: usize,
    launch: impl Fn() -> c_int,
) -> Option<f32> {
    // SAFETY: the stream is valid and of the current device.
    let record = || unsafe { TimingEvent::record(runtime, stream) };
    let launched = |count: usize| (0..count).all(|_| launch() == SUCCESS).then_some(());
    launched(1)?;
    let start = record()?;
    launched(launches)?;
    let end = record()?;
    // SAFETY: the stream is valid.
    let code = unsafe { (runtime.stream_synchronize)(stream) };
    (code == SUCCESS).then(|| (start.seconds_until(&end) * 1e3) as f32 / launches as f32)
}

/// Where a GEMM may write while it is tuned: a GEMM that accumulates gets a copy of its output, because
/// every launch changes it. The error is the runtime's code.
pub(crate) fn tuning_output(
    runtime: &Arc<Runtime>,
    stream: Stream,
    gemm: &Gemm,
    args: &GemmArgs,
) -> Result<Option<RuntimeMemory>, c_int> {
    if !gemm.accumulate {
        return Ok(None);
    }
    let copy = RuntimeMemory::device(runtime, gemm.output_bytes())?;
    let (to, from) = (copy.ptr().as_raw(), args.d.as_raw());
    // SAFETY: both have this many bytes.
    let code = unsafe { (runtime.memcpy_async)(to, from, copy.bytes, MEMCPY_DEFAULT, stream) };
    if code == SUCCESS { Ok(Some(copy)) } else { Err(code) }
}

/// Whether a stream is being captured: then nothing may be timed or waited for.
pub(crate) fn is_capturing(runtime: &Runtime, stream: Stream) -> bool {
    let mut status = 0;
    // SAFETY: the stream is valid; the function writes one integer.
    let code = unsafe { (runtime.stream_is_capturing)(stream, &mut status) };
    code != SUCCESS || status != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_candidate_is_kept() {
        let times = [5.0, 2.0, 0.5, 1.0, 0.75, 9.0];
        assert_eq!(fastest(times.len(), |at, _| Some(times[at])), Some(2));
    }

    #[test]
    fn failing_candidates_are_skipped() {
        let times = [None, Some(3.0), None, Some(2.0)];
        assert_eq!(fastest(times.len(), |at, _| times[at]), Some(3));
        assert_eq!(fastest(2, |_, _| None), None);
        assert_eq!(fastest(0, |_, _| Some(1.0)), None);
    }

    #[test]
    fn final_rounds_correct_a_disturbed_first_round() {
        let mut calls = 0;
        let best = fastest(3, |at, _| {
            calls += 1;
            let disturbed = calls == 1;
            Some([1.0, 1.2, 4.0][at] * if disturbed { 2.0 } else { 1.0 })
        });
        assert_eq!((best, calls), (Some(0), 3 + 3 * FINAL_ROUNDS));
    }

    #[test]
    fn long_gemms_are_launched_less_often() {
        let launches = |ms: f32| {
            let mut most = 0;
            fastest(1, |_, launches| {
                most = launches;
                Some(ms)
            });
            most
        };
        assert_eq!([launches(0.0), launches(0.01), launches(0.5), launches(100.0)], [8, 8, 4, 1]);
    }
}
