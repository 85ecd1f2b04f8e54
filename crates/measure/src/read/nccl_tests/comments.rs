//! Comments of nccl-tests and rccl-tests.

use regatta_model::bench::{BenchDevice, BenchParameters, BenchSummary, SizeStep};

/// The options line: `nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) …`.
pub(super) fn parameters(text: &str) -> Option<BenchParameters> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let after = |names: &[&str]| {
        let found = words.windows(names.len() + 1).find(|w| w.starts_with(names))?;
        found.last().copied()
    };
    let number = |names: &[&str]| after(names)?.parse::<u64>().ok();
    let (amount, kind) = after(&["step:"])?.trim_end_matches(')').split_once('(')?;
    let amount = amount.parse().ok()?;
    // "iters:" follows "warmup iters: N"; "agg iters:" comes later.
    let warmup = words.iter().position(|word| *word == "warmup")?;
    words.get(warmup + 3).filter(|word| **word == "iters:")?;
    Some(BenchParameters {
        threads: number(&["nThread"])?,
        devices: number(&["nGpus"])?,
        min_bytes: number(&["minBytes"])?,
        max_bytes: number(&["maxBytes"])?,
        step: match kind {
            "factor" => SizeStep::Factor(amount),
            "bytes" => SizeStep::Bytes(amount),
            _ => return None,
        },
        warmup: number(&["warmup", "iters:"])?,
        iterations: words.get(warmup + 4)?.parse().ok()?,
        agg_iters: number(&["agg", "iters:"]),
        check: number(&["validation:"])?,
        graph: number(&["graph:"]),
        unalign: number(&["unalign:"]),
    })
}

/// The line of a rank: `Rank  0 Group  0 Pid  123 on  node1 device  0 [0000:07:00] NVIDIA H100`.
pub(super) fn device(text: &str) -> Option<BenchDevice> {
    let rest = text.trim().strip_prefix("Rank ")?;
    let (rank, rest) = word(rest)?;
    let (group, rest) = match rest.trim_start().strip_prefix("Group ") {
        Some(rest) => word(rest).map(|(group, rest)| (group.parse().ok(), rest))?,
        None => (None, rest),
    };
    let (pid, rest) = word(rest.trim_start().strip_prefix("Pid ")?)?;
    let (host, rest) = word(rest.trim_start().strip_prefix("on ")?)?;
    let (device, rest) = word(rest.trim_start().strip_prefix("device ")?)?;
    let (bus, name) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
    Some(BenchDevice {
        rank: rank.parse().ok()?,
        group,
        pid: pid.parse().ok()?,
        host: host.to_owned(),
        device: device.parse().ok()?,
        bus: bus.to_owned(),
        name: name.trim().to_owned(),
    })
}

fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Parses a summary line; `false` if it is none.
pub(super) fn summarize(text: &str, summary: &mut Option<BenchSummary>) -> bool {
    let Some((name, rest)) = text.split_once(':') else { return false };
    let mut words = rest.split_whitespace();
    let (Some(value), status) = (words.next(), words.next()) else { return false };
    match name.trim() {
        "Out of bounds values" => {
            let Ok(count) = value.parse() else { return false };
            summary.get_or_insert_default().out_of_bounds = Some(count);
        }
        "Avg bus bandwidth" => {
            let Ok(mean) = super::super::parse_metric(value) else { return false };
            let summary = summary.get_or_insert_default();
            summary.average_busbw = mean;
            summary.average_ok = match status {
                Some("OK") => Some(true),
                Some("FAILED") => Some(false),
                _ => None,
            };
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_old_and_new_versions_are_parsed() {
        let old = "nThread 1 nGpus 8 minBytes 9 maxBytes 64 step: 1048576(bytes) warmup iters: 5 \
                   iters: 20 validation: 1 ";
        let found = parameters(old).unwrap();
        assert_eq!((found.devices, found.iterations, found.agg_iters), (8, 20, None));
        assert_eq!(found.step, SizeStep::Bytes(1_048_576));
        let new = "nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 1 \
                   iters: 30 agg iters: 4 validation: 1 graph: 0 unalign: 2";
        let found = parameters(new).unwrap();
        assert_eq!((found.warmup, found.iterations, found.agg_iters), (1, 30, Some(4)));
        assert_eq!((found.unalign, found.step), (Some(2), SizeStep::Factor(2)));
        assert_eq!(parameters("nThread 1"), None);
    }

    #[test]
    fn ranks_of_old_and_new_versions_are_parsed() {
        let new = "  Rank 12 Group  1 Pid 272738 on      node1 device  3 [0000:c1:00] NVIDIA H100";
        let found = device(new).unwrap();
        assert_eq!((found.rank, found.group, found.device), (12, Some(1), 3));
        assert_eq!((found.bus.as_str(), found.name.as_str()), ("0000:c1:00", "NVIDIA H100"));
        let old = "   Rank  0 Pid   1320 on ip-172-31-20-228 device  0 [0x00] Tesla V100-SXM2-16GB";
        assert_eq!(device(old).unwrap().group, None);
        assert_eq!(device("Rank x"), None);
    }

    #[test]
    fn summary_lines_are_parsed() {
        let mut summary = None;
        assert!(summarize(" Out of bounds values : 0 OK", &mut summary));
        assert!(summarize(" Avg bus bandwidth    : 103.965 ", &mut summary));
        assert!(!summarize(" Testing 2 cycle.", &mut summary));
        let found = summary.unwrap();
        assert_eq!((found.out_of_bounds, found.average_busbw), (Some(0), Some(103.965)));
        assert_eq!(found.average_ok, None);
    }
}
