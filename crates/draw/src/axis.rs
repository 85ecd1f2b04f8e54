//! Axes: position of values, and ticks.

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PlotAxis {
    /// From 0 to this.
    Linear(f64),
    /// Logarithmic with this base, from one exponent to another.
    Log(f64, i32, i32),
}

/// Intervals of a linear axis, at most.
const MAX_INTERVALS: f64 = 8.0;

impl PlotAxis {
    /// From 0 to a round number above all values.
    pub fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        if max <= 0.0 {
            return Self::Linear(1.0);
        }
        let step = round_step(max / MAX_INTERVALS);
        Self::Linear((max / step).ceil() * step)
    }

    /// Powers of a base around all values. Non-positive values are drawn at the lower end.
    pub fn log(base: f64, values: impl Iterator<Item = f64>) -> Self {
        let logs = values.filter(|v| v.is_finite() && *v > 0.0).map(|value| value.ln() / base.ln());
        let (low, high) = range(logs).unwrap_or((0.0, 1.0));
        // Tolerates rounding of exact powers.
        let (low, high) = ((low + 1e-9).floor() as i32, (high - 1e-9).ceil() as i32);
        Self::Log(base, low, high.max(low + 1))
    }

    /// Position of a value, from 0 to 1.
    pub fn position(self, value: f64) -> f64 {
        match self {
            Self::Linear(max) => (value / max).clamp(0.0, 1.0),
            Self::Log(..) if value <= 0.0 => 0.0,
            Self::Log(base, low, high) => {
                let (low, high) = (f64::from(low), f64::from(high));
                ((value.ln() / base.ln() - low) / (high - low)).clamp(0.0, 1.0)
            }
        }
    }

    /// Tick values, about ten at most.
    pub fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(max) => multiples(round_step(max / MAX_INTERVALS), 0.0, max).collect(),
            Self::Log(base, low, high) => {
                let every = (high - low) / 10 + 1;
                let powers = (low..=high).filter(|power| (power - low) % every == 0);
                powers.map(|power| base.powi(power)).collect()
            }
        }
    }
}

/// Minimum and maximum of the finite values.
pub fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| {
        Some(
            range.map_or((value, value), |(low, high): (f64, f64)| {
                (low.min(value), high.max(value))
            }),
        )
    })
}

/// The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `step`.
pub fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let candidates = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    candidates.into_iter().find(|round| *round >= step * (1.0 - 1e-9)).unwrap_or(step)
}

/// The multiples of `step` from `low` to `high`.
pub fn multiples(step: f64, low: f64, high: f64) -> impl Iterator<Item = f64> {
    let first = (low / step - 1e-9).ceil() as i64;
    let values = (first..).map(move |n| n as f64 * step);
    values.take_while(move |value| *value <= high + step * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_end_above_all_values() {
        let axis = PlotAxis::from_zero([109.01, 8.03].into_iter());
        assert_eq!(axis, PlotAxis::Linear(120.0));
        assert_eq!(axis.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]);
        assert_eq!((axis.position(60.0), axis.position(500.0)), (0.5, 1.0));
        assert_eq!(PlotAxis::from_zero(std::iter::empty()), PlotAxis::Linear(1.0));
    }

    #[test]
    fn log_axes_span_all_values() {
        let axis = PlotAxis::log(2.0, [65536.0, 4_294_967_296.0].into_iter());
        assert_eq!(axis, PlotAxis::Log(2.0, 16, 32));
        assert_eq!((axis.position(65536.0), axis.position(16_777_216.0)), (0.0, 0.5));
        assert_eq!(axis.ticks().len(), 9);
        let one = PlotAxis::log(10.0, [100.0].into_iter());
        assert_eq!(one, PlotAxis::Log(10.0, 2, 3));
        assert_eq!(PlotAxis::log(2.0, [0.0, f64::NAN].into_iter()).position(0.0), 0.0);
    }
}
