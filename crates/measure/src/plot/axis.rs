//! Axes: where a value is drawn, and which values are written beside it.

/// How values are spread over an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum PlotAxis {
    /// From zero to this.
    Linear(f64),
    /// Logarithms to this base, from one power of it to another.
    Log(f64, i32, i32),
}

impl PlotAxis {
    /// From zero to a round number above all values.
    pub fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        if max <= 0.0 {
            return Self::Linear(1.0);
        }
        let step = round_step(max);
        Self::Linear((max / step).ceil() * step)
    }

    /// Powers of a base around all values. What is not above zero is drawn at the low end.
    pub fn log(base: f64, values: impl Iterator<Item = f64>) -> Self {
        let logs = values.filter(|v| v.is_finite() && *v > 0.0).map(|value| value.ln() / base.ln());
        let bounds = logs.fold(None, |bounds: Option<(f64, f64)>, log| {
            let (low, high) = bounds.unwrap_or((log, log));
            Some((low.min(log), high.max(log)))
        });
        let (low, high) = bounds.unwrap_or((0.0, 1.0));
        // What is a power but for rounding is one.
        let (low, high) = ((low + 1e-9).floor() as i32, (high - 1e-9).ceil() as i32);
        Self::Log(base, low, high.max(low + 1))
    }

    /// Where a value is, from 0 to 1.
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

    /// Values to be written, at max about ten.
    pub fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(max) => {
                let step = round_step(max);
                let count = (max / step).round() as i32;
                (0..=count).map(|n| f64::from(n) * step).collect()
            }
            Self::Log(base, low, high) => {
                let every = (high - low) / 10 + 1;
                let powers = (low..=high).filter(|power| (power - low) % every == 0);
                powers.map(|power| base.powi(power)).collect()
            }
        }
    }
}

/// One, two or five times a power of ten, four to nine of which make y_of a value.
fn round_step(value: f64) -> f64 {
    let ten = 10f64.powf((value / 4.0).log10().floor());
    let times = [5.0, 2.0, 1.0].into_iter().find(|times| times * ten <= value / 4.0);
    times.unwrap_or(1.0) * ten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_from_zero_ends_above_all() {
        let axis = PlotAxis::from_zero([109.01, 8.03].into_iter());
        assert_eq!(axis, PlotAxis::Linear(120.0));
        assert_eq!(axis.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]);
        assert_eq!((axis.position(60.0), axis.position(500.0)), (0.5, 1.0));
        assert_eq!(PlotAxis::from_zero(std::iter::empty()), PlotAxis::Linear(1.0));
    }

    #[test]
    fn an_axis_of_powers_holds_all() {
        let axis = PlotAxis::log(2.0, [65536.0, 4_294_967_296.0].into_iter());
        assert_eq!(axis, PlotAxis::Log(2.0, 16, 32));
        assert_eq!((axis.position(65536.0), axis.position(16_777_216.0)), (0.0, 0.5));
        assert_eq!(axis.ticks().len(), 9);
        let one = PlotAxis::log(10.0, [100.0].into_iter());
        assert_eq!(one, PlotAxis::Log(10.0, 2, 3));
        assert_eq!(PlotAxis::log(2.0, [0.0, f64::NAN].into_iter()).position(0.0), 0.0);
    }
}
