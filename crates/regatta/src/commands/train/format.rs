//! Formatting of counts, token rates and losses.

use regatta_model::units::format_si;

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
    fn counts_rates_and_losses_are_formatted() {
        assert_eq!(format_count(1_203_000.0), "1.20M");
        assert_eq!(format_params(8_030_261_248.0), "8.03B");
        assert_eq!(format_token_rate(23_834.0), "23.8k tok/s");
        assert_eq!((format_loss(2.69312), format_loss(f64::NAN)), ("2.6931".into(), "nan".into()));
    }
}
