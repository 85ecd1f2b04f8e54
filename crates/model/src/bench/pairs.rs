//! What every pair of ranks can do, as matrices.

use serde::{Deserialize, Serialize};

/// A square of figures: the row sends, the column receives. What was not measured is absent.
pub type Matrix = Vec<Vec<Option<f64>>>;

/// What was measured between every two ranks of a job, or between one rank of each node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pairs {
    /// Who was measured, in the order of rows and columns.
    pub ends: Vec<PairEnd>,
    /// Bytes of a message of the bandwidths; over slow links they were smaller.
    pub bytes: u64,
    /// Whether other pairs were idle while one was measured.
    pub one_at_a_time: bool,
    /// GB/s from the row's rank to the column's.
    pub bandwidth: Matrix,
    /// The least time of 8 bytes on their way, half of there and back, in microseconds.
    pub latency_us: Matrix,
    /// The median of the same.
    pub latency_median_us: Matrix,
    /// What stands out, in sentences, the worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

/// One rank that was measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairEnd {
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub host: String,
}

impl Pairs {
    /// What contradicts itself: matrices that are no squares of the ends, figures below zero.
    pub fn fault(&self) -> Option<String> {
        let matrices = [
            ("bandwidth", &self.bandwidth),
            ("latency_us", &self.latency_us),
            ("latency_median_us", &self.latency_median_us),
        ];
        let n = self.ends.len();
        for (name, matrix) in matrices {
            if matrix.len() != n || matrix.iter().any(|row| row.len() != n) {
                return Some(format!("{name} of pairs is no square of {n} ranks"));
            }
            let all = matrix.iter().flatten().flatten();
            if let Some(figure) = all.into_iter().find(|figure| **figure < 0.0) {
                return Some(format!("{name} of pairs has a figure below zero: {figure}"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BenchResult;
    use crate::document::{from_json, to_json};

    #[test]
    fn they_are_read_back_and_left_out_where_there_are_none() {
        let end = PairEnd { rank: 3, host: "a".to_owned() };
        let one = || vec![vec![None]];
        let pairs = Pairs {
            ends: vec![end],
            bandwidth: one(),
            latency_us: one(),
            latency_median_us: one(),
            findings: vec!["all is well".to_owned()],
            ..Pairs::default()
        };
        let result = BenchResult { pairs: Some(pairs), ..BenchResult::default() };
        let text = to_json(&result).unwrap();
        assert_eq!(from_json::<BenchResult>(&text).unwrap(), result);
        let odd = text.replace("\"rank\": 3", "\"rank\": 3}, {\"rank\": 4");
        let error = from_json::<BenchResult>(&odd).unwrap_err().to_string();
        assert!(error.contains("no square of 2 ranks"), "{error}");
        assert!(!to_json(&BenchResult::default()).unwrap().contains("pairs"));
    }

    #[test]
    fn a_matrix_must_be_a_square_of_the_ends() {
        let square = || vec![vec![None, Some(2.0)], vec![Some(1.5), None]];
        let end = |rank| PairEnd { rank, host: "a".to_owned() };
        let good = Pairs {
            ends: vec![end(0), end(4)],
            bandwidth: square(),
            latency_us: square(),
            latency_median_us: square(),
            ..Pairs::default()
        };
        assert_eq!(good.fault(), None);
        let short = Pairs { latency_us: vec![vec![None; 2]], ..good.clone() };
        assert!(short.fault().unwrap().contains("latency_us of pairs is no square of 2"));
        let mut negative = good;
        negative.bandwidth[1][0] = Some(-1.0);
        assert!(negative.fault().unwrap().contains("bandwidth of pairs has a figure below zero"));
    }
}
