//! Numbers for people.

/// `121034.0` as `121 k`: three digits and a prefix.
pub fn si(number: f64) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    if !number.is_finite() {
        return "?".to_owned();
    }
    let mut rest = number;
    let mut prefix = 0;
    // What would be rounded to 1000 has the next prefix.
    while rest.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        rest /= 1000.0;
        prefix += 1;
    }
    let decimals = match rest.abs() {
        _ if prefix == 0 && rest.fract() == 0.0 => 0,
        r if r < 9.995 => 2,
        r if r < 99.95 => 1,
        _ => 0,
    };
    format!("{rest:.decimals$}{}", PREFIXES[prefix])
}

/// Parameters, of which a thousand million are a billion: `8.03 B`.
pub fn parameters(number: f64) -> String {
    si(number).replace('G', "B")
}

/// `38.2 GFLOP/s`: the prefix stands at the unit.
pub fn with_unit(number: f64, unit: &str) -> String {
    let text = si(number);
    match text.split_once(' ') {
        Some((digits, prefix)) => format!("{digits} {prefix}{unit}"),
        None => format!("{text} {unit}"),
    }
}

/// A time in words.
pub fn duration(seconds: f64) -> String {
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

/// A short time with its unit: `8.20 ms`.
pub fn short(seconds: f64) -> String {
    let digits = |number: f64| match number {
        n if n < 9.995 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    };
    match seconds {
        s if s < 0.999_5e-3 => format!("{} µs", digits(s * 1e6)),
        s if s < 0.999_5 => format!("{} ms", digits(s * 1e3)),
        s => format!("{} s", digits(s)),
    }
}

/// A loss: four decimals, or what it became instead of a number.
pub fn loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "not a number".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
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
        for (number, text) in cases {
            assert_eq!(si(number), text);
        }
        assert_eq!(parameters(8_030_261_248.0), "8.03 B");
        assert_eq!(with_unit(38.24e9, "FLOP/s"), "38.2 GFLOP/s");
        assert_eq!(with_unit(12.0, "FLOP/s"), "12 FLOP/s");
        assert_eq!(loss(f64::NAN), "not a number");
    }

    #[test]
    fn times_are_in_words() {
        let times = [0.2, 59.0, 61.2, 7300.0, 200_000.0, -3.0].map(duration);
        assert_eq!(times, ["1 s", "59 s", "1 min 2 s", "2 h 1 min", "2 d 7 h", "0 s"]);
        let times = [0.0000123, 0.0082, 0.0995, 0.9996, 12.34].map(short);
        assert_eq!(times, ["12.3 µs", "8.20 ms", "99.5 ms", "1.00 s", "12.3 s"]);
    }
}
