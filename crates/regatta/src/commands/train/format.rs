//! Formatting of counts, rates, times and losses.

/// Three significant digits and an SI prefix: `121034.0` is `121 k`.
pub fn format_si(value: f64) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    if !value.is_finite() {
        return "?".to_owned();
    }
    let mut scaled = value;
    let mut prefix = 0;
    // A value that would be rounded to 1000 gets the next prefix.
    while scaled.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    let decimals = match scaled.abs() {
        _ if prefix == 0 && scaled.fract() == 0.0 => 0,
        x if x < 9.995 => 2,
        x if x < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$}{}", PREFIXES[prefix])
}

/// [`format_si`] with a unit: `38.2 GFLOP/s`.
pub fn format_si_unit(value: f64, unit: &str) -> String {
    let text = format_si(value);
    match text.split_once(' ') {
        Some((digits, prefix)) => format!("{digits} {prefix}{unit}"),
        None => format!("{text} {unit}"),
    }
}

/// A duration in its two largest units: `1 h 12 min`. Rounded up to whole seconds.
pub fn format_duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "?".to_owned();
    }
    match seconds.max(0.0).ceil() as u64 {
        s @ ..60 => format!("{s} s"),
        s @ ..3600 => format!("{} min {} s", s / 60, s % 60),
        s @ ..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        s => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A measured time with three significant digits: `8.20 ms`.
pub fn format_time(seconds: f64) -> String {
    let digits = |value: f64| match value {
        x if x < 9.995 => format!("{x:.2}"),
        x if x < 99.95 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    };
    match seconds {
        s if s < 0.999_5e-3 => format!("{} µs", digits(s * 1e6)),
        s if s < 0.999_5 => format!("{} ms", digits(s * 1e3)),
        s => format!("{} s", digits(s)),
    }
}

/// A count without a space before the prefix: `1.20M`.
pub fn format_count(count: f64) -> String {
    format_si(count).replace(' ', "")
}

/// A number of parameters: `8.03B`.
pub fn format_params(count: f64) -> String {
    format_count(count).replace('G', "B")
}

/// Training throughput: `23.8k tok/s`.
pub fn format_token_rate(tokens_per_second: f64) -> String {
    format!("{} tok/s", format_count(tokens_per_second))
}

/// A loss with four decimals, or `nan`.
pub fn format_loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "nan".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn si_prefixes_keep_three_significant_digits() {
        let cases = [
            (0.0, "0"),
            (65.0, "65"),
            (999.0, "999"),
            (1000.0, "1.00 k"),
            (121_034.0, "121 k"),
            (999_600.0, "1.00 M"),
            (124_439_808.0, "124 M"),
            (70.55e9, "70.5 G"),
            (f64::NAN, "?"),
        ];
        for (value, text) in cases {
            assert_eq!(format_si(value), text);
        }
        assert_eq!(format_si_unit(38.24e9, "FLOP/s"), "38.2 GFLOP/s");
        assert_eq!(format_si_unit(12.0, "FLOP/s"), "12 FLOP/s");
    }

    #[test]
    fn counts_rates_and_losses_are_formatted() {
        assert_eq!(format_count(1_203_000.0), "1.20M");
        assert_eq!(format_params(8_030_261_248.0), "8.03B");
        assert_eq!(format_token_rate(23_834.0), "23.8k tok/s");
        assert_eq!((format_loss(2.69312), format_loss(f64::NAN)), ("2.6931".into(), "nan".into()));
    }

    #[test]
    fn durations_have_two_units_and_times_three_digits() {
        let times = [0.2, 59.0, 61.2, 7300.0, 200_000.0, -3.0].map(format_duration);
        assert_eq!(times, ["1 s", "59 s", "1 min 2 s", "2 h 1 min", "2 d 7 h", "0 s"]);
        let times = [0.0000123, 0.0082, 0.0995, 0.9996, 12.34].map(format_time);
        assert_eq!(times, ["12.3 µs", "8.20 ms", "99.5 ms", "1.00 s", "12.3 s"]);
    }
}
