//! Distribution of times.

use regatta_model::bench::TimeStats;

/// Percentiles and coefficient of variation of times in µs; `None` without times.
pub fn spread(mut times: Vec<f64>) -> Option<TimeStats> {
    times.sort_by(f64::total_cmp);
    let (min, max) = (*times.first()?, *times.last()?);
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    let cv = (mean > 0.0).then(|| variance.sqrt() / mean * 100.0);
    // Nearest-rank percentile.
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).copied()
    };
    Some(TimeStats {
        min_us: Some(min),
        p50_us: at(50),
        p90_us: at(90),
        p95_us: at(95),
        p99_us: at(99),
        max_us: Some(max),
        cv_percent: cv,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_times() {
        let found = spread((1..=200).rev().map(f64::from).collect()).unwrap();
        let all = [found.min_us, found.p50_us, found.p90_us, found.p95_us, found.p99_us];
        assert_eq!(all, [1.0, 100.0, 180.0, 190.0, 198.0].map(Some));
        assert_eq!(found.max_us, Some(200.0));
        let one = spread(vec![3.0]).unwrap();
        assert_eq!((one.p50_us, one.p99_us, one.cv_percent), (Some(3.0), Some(3.0), Some(0.0)));
        assert_eq!(spread(Vec::new()), None);
    }
}
