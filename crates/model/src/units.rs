//! Figures for people: bytes in binary units, bandwidth in bits, counts with their noun.

/// `137438953472` as `128 GiB`; one decimal below ten units, none above.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value < 10.0 && value.fract() >= 0.05);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// `200000` Mbit/s as `200 Gb/s`.
pub fn megabits_per_second(mbit: u64) -> String {
    match mbit {
        m if m >= 1000 && m % 1000 == 0 => format!("{} Gb/s", m / 1000),
        m if m >= 1000 => format!("{:.1} Gb/s", m as f64 / 1000.0),
        m => format!("{m} Mb/s"),
    }
}

/// `1 rank`, `2 ranks`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(128 << 30), "128 GiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(megabits_per_second(200_000), "200 Gb/s");
        assert_eq!(megabits_per_second(2_500), "2.5 Gb/s");
        assert_eq!(megabits_per_second(100), "100 Mb/s");
        assert_eq!((count(1, "rank"), count(2, "rank")), ("1 rank".into(), "2 ranks".into()));
    }
}
