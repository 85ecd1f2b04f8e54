//! Numbers for people: bytes, bit rates, SI prefixes, durations, counts.

const UNKNOWN: &str = "?";

/// Binary units: `137438953472` is `128 GiB`. One decimal below ten units, none above.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value < 10.0 && value.fract() >= 0.05);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Memory in binary units with one decimal: `1.5 GiB`, so that sizes of a table can be compared.
pub fn format_memory(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

/// A link speed: `200000` Mbit/s is `200 Gb/s`.
pub fn format_mbit_per_s(mbit: u64) -> String {
    match mbit {
        m if m >= 1000 && m % 1000 == 0 => format!("{} Gb/s", m / 1000),
        m if m >= 1000 => format!("{:.1} Gb/s", m as f64 / 1000.0),
        m => format!("{m} Mb/s"),
    }
}

/// Three significant digits and an SI prefix: `121034.0` is `121 k`.
pub fn format_si(value: f64) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    let mut scaled = value;
    let mut prefix = 0;
    // 999.5 rounds to 1000, which takes the next prefix.
    while scaled.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    match prefix {
        0 if scaled.fract() == 0.0 => format!("{scaled:.0}"),
        _ => format!("{}{}", three_digits(scaled), PREFIXES[prefix]),
    }
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
        return UNKNOWN.to_owned();
    }
    match seconds.max(0.0).ceil() as u64 {
        s @ ..60 => format!("{s} s"),
        s @ ..3600 => format!("{} min {} s", s / 60, s % 60),
        s @ ..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        s => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// An elapsed time in its two largest units, rounded down: `1 min 31 s`; with one decimal below 10 s.
pub fn format_elapsed(seconds: f64) -> String {
    match seconds {
        s if (0.0..10.0).contains(&s) => format!("{:.1} s", (s * 10.0).floor() / 10.0),
        s => format_duration(s.floor()),
    }
}

/// A measured time with three significant digits: `8.20 ms`.
pub fn format_time(seconds: f64) -> String {
    match seconds {
        s if s < 0.999_5e-3 => format!("{} µs", three_digits(s * 1e6)),
        s if s < 0.999_5 => format!("{} ms", three_digits(s * 1e3)),
        s => format!("{} s", three_digits(s)),
    }
}

fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// `1 rank`, `2 ranks`.
pub fn pluralize(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
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

/// Numbers as ascending ranges: `0-3,6`.
pub fn format_ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    ranges(sorted.into_iter()).join(",")
}

/// Ascending numbers as ranges: `0-3` and `6`.
pub fn ranges(numbers: impl Iterator<Item = u32>) -> Vec<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(number) => *end = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect()
}

/// `rank 3`, `ranks 0-2,4`.
pub fn format_ranks(ranks: &[u32]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", format_ranges(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_use_binary_units() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(128 << 30), "128 GiB");
        assert_eq!(format_bytes(u64::MAX), "16 EiB");
    }

    #[test]
    fn link_speeds_use_bits() {
        assert_eq!(format_mbit_per_s(200_000), "200 Gb/s");
        assert_eq!(format_mbit_per_s(2_500), "2.5 Gb/s");
        assert_eq!(format_mbit_per_s(100), "100 Mb/s");
    }

    #[test]
    fn si_prefixes_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (65.0, "65"),
            (999.0, "999"),
            (1.5, "1.50"),
            (999.6, "1.00 k"),
            (121_034.0, "121 k"),
            (8.03e9, "8.03 G"),
            (f64::NAN, "?"),
        ];
        for (value, text) in cases {
            assert_eq!(format_si(value), text);
        }
        assert_eq!(format_si_unit(38.2e9, "FLOP/s"), "38.2 GFLOP/s");
        assert_eq!(format_si_unit(7.0, "B"), "7 B");
    }

    #[test]
    fn durations_have_two_units_and_times_three_digits() {
        let durations = [0.2, 61.0, 4350.0, 90_000.0, f64::INFINITY].map(format_duration);
        assert_eq!(durations, ["1 s", "1 min 1 s", "1 h 12 min", "1 d 1 h", "?"]);
        assert_eq!([4.2e-6, 0.0082, 12.34].map(format_time), ["4.20 µs", "8.20 ms", "12.3 s"]);
    }

    #[test]
    fn counts_agree_with_their_noun() {
        assert_eq!([pluralize(1, "rank"), pluralize(2, "rank")], ["1 rank", "2 ranks"]);
    }

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(format_ranges(&[]), "");
        assert_eq!(format_ranges(&[7, 0, 1, 2, 5, 8, 8]), "0-2,5,7-8");
        assert_eq!(format_ranges(&[u32::MAX]), "4294967295");
        assert_eq!([format_ranks(&[3]), format_ranks(&[1, 0])], ["rank 3", "ranks 0-1"]);
    }

    #[test]
    fn counts_rates_and_losses_are_formatted() {
        assert_eq!(format_count(1_203_000.0), "1.20M");
        assert_eq!(format_params(8_030_261_248.0), "8.03B");
        assert_eq!(format_token_rate(23_834.0), "23.8k tok/s");
        assert_eq!((format_loss(2.69312), format_loss(f64::NAN)), ("2.6931".into(), "nan".into()));
    }
}
