//! Comparison of loss curves with a stated tolerance.

use crate::support::metrics::RunMetrics;

/// The largest relative error of any training or validation loss.
pub fn max_loss_error(run: &RunMetrics, expected: &RunMetrics) -> Result<f64, String> {
    if !run.steps.keys().eq(expected.steps.keys())
        || !run.val_losses.keys().eq(expected.val_losses.keys())
        || run.steps.is_empty()
    {
        return Err(format!("different steps: {run:?}, expected {expected:?}"));
    }
    let steps = run.steps.values().zip(expected.steps.values());
    let losses = steps.map(|(run, expected)| (run.loss, expected.loss));
    let val_losses = run.val_losses.values().zip(expected.val_losses.values());
    let all = losses.chain(val_losses.map(|(run, expected)| (*run, *expected)));
    // f64::max ignores NaN, so that a loss that is NaN is reported as an infinite error.
    let error = |(run, expected): (f64, f64)| ((run - expected) / expected).abs();
    let finite = |error: f64| if error.is_nan() { f64::INFINITY } else { error };
    Ok(all.map(error).map(finite).fold(0.0, f64::max))
}

/// Describes the error of a run that is within the tolerance; otherwise also lists its losses.
pub fn check_losses(
    run: &RunMetrics,
    expected: &RunMetrics,
    tolerance: f64,
) -> Result<String, String> {
    let error = max_loss_error(run, expected)?;
    let text = format!("largest relative error {error:.1e}, tolerance {tolerance:.0e}");
    if error <= tolerance {
        return Ok(text);
    }
    let losses = |run: &RunMetrics| run.steps.values().map(|step| step.loss).collect::<Vec<_>>();
    Err(format!("{text}; losses {:?}, expected {:?}", losses(run), losses(expected)))
}

#[test]
fn losses_outside_the_tolerance_are_reported() {
    use crate::support::metrics::StepValues;
    let run = |losses: &[f64]| {
        let values = |loss| StepValues { loss, grad_norm: 1.0, lr: 1.0, tokens: 1 };
        let steps = (1..).zip(losses.iter().map(|loss| values(*loss))).collect();
        RunMetrics { steps, ..Default::default() }
    };
    let expected = run(&[4.0, 2.0]);
    assert_eq!(max_loss_error(&run(&[4.0, 2.002]), &expected).map(|e| (e * 1e3).round()), Ok(1.0));
    assert!(check_losses(&run(&[4.0, 2.0]), &expected, 0.0).is_ok());
    assert!(check_losses(&run(&[4.0, 2.002]), &expected, 1e-4).unwrap_err().contains("2.002"));
    assert!(check_losses(&run(&[f64::NAN, 2.0]), &expected, 1.0).is_err());
    assert!(max_loss_error(&run(&[4.0]), &expected).is_err());
}
