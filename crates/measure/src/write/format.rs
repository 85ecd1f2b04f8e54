//! Number formats of nccl-tests.

/// At most two decimals, fewer if they do not fit; else with an exponent.
pub(super) fn fixed_width(value: Option<f64>, width: usize) -> String {
    let Some(value) = value else { return format!("{:>width$}", "N/A") };
    let fixed = (0..=2).rev().map(|decimals| format!("{value:>width$.decimals$}"));
    let exponent = || format_e(value, usize::from(width >= 7));
    fixed.into_iter().find(|text| text.len() <= width).unwrap_or_else(exponent)
}

/// Six significant digits without trailing zeros, as C's `%g`.
pub(super) fn format_g(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    // The exponent after rounding: 999999.9 is 1e+06.
    let rounded = format_e(value, DIGITS as usize - 1);
    let (digits, power) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let power: i32 = power.parse().unwrap_or_default();
    if !(-4..DIGITS).contains(&power) {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim_zeros(digits), power.abs());
    }
    let decimals = usize::try_from(DIGITS - 1 - power).unwrap_or_default();
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// As C's `%.*e`: at least two exponent digits, always signed.
fn format_e(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

fn trim_zeros(digits: &str) -> &str {
    if !digits.contains('.') {
        return digits;
    }
    digits.trim_end_matches('0').trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_dropped_to_fit_the_width() {
        let time = |value| fixed_width(Some(value), 7);
        assert_eq!([time(1.5), time(1234.56), time(9999.99)], ["   1.50", "1234.56", "9999.99"]);
        assert_eq!([time(9999.996), time(12345.6)], ["10000.0", "12345.6"]);
        assert_eq!([time(123456.7), time(9_999_999.4)], [" 123457", "9999999"]);
        assert_eq!([time(12_345_678.0), time(1.0e12)], ["1.2e+07", "1.0e+12"]);
        assert_eq!(fixed_width(Some(1_234_567.0), 6), "1e+06");
        assert_eq!(fixed_width(None, 6), "   N/A");
    }

    #[test]
    fn format_g_matches_c() {
        let all = [0.0, 1.0, 103.965, 0.05612, 999_999.9, 1_234_567.0, 0.000_012_34, 100_000.0];
        let expected =
            ["0", "1", "103.965", "0.05612", "1e+06", "1.23457e+06", "1.234e-05", "100000"];
        assert_eq!(all.map(format_g), expected);
    }
}
