//! Bandwidth and latency matrices over all pairs of ranks.

use serde::{Deserialize, Serialize};

/// A square matrix: the row sends, the column receives. Unmeasured entries are `None`.
pub type PairMatrix = Vec<Vec<Option<f64>>>;

/// Point-to-point measurements between all ranks of a job, or between one rank per node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairMatrices {
    /// The measured ranks, in row and column order.
    #[serde(alias = "ends")]
    pub endpoints: Vec<PairEndpoint>,
    /// Message size of the bandwidth test; slow links use smaller messages.
    pub bytes: u64,
    /// Whether only one pair communicated at a time.
    pub one_at_a_time: bool,
    /// Bandwidth from the row's rank to the column's, in GB/s.
    pub bandwidth: PairMatrix,
    /// Minimum one-way latency of 8 bytes (half the round trip), in microseconds.
    pub latency_us: PairMatrix,
    /// Median one-way latency of 8 bytes, in microseconds.
    pub latency_median_us: PairMatrix,
    /// Outliers in sentences, the worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

/// A measured rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairEndpoint {
    /// The rank.
    pub rank: u32,
    /// Host name.
    pub host: String,
}

impl PairMatrices {
    /// The first inconsistency: a matrix of another dimension than the endpoints, or a negative
    /// value.
    pub fn inconsistency(&self) -> Option<String> {
        let names = ["bandwidth", "latency_us", "latency_median_us"];
        let matrices = [&self.bandwidth, &self.latency_us, &self.latency_median_us];
        let n = self.endpoints.len();
        for (name, matrix) in names.into_iter().zip(matrices) {
            if matrix.len() != n || matrix.iter().any(|row| row.len() != n) {
                return Some(format!("pairs.{name} is not a {n} x {n} matrix"));
            }
            if let Some(value) = matrix.iter().flatten().flatten().find(|value| **value < 0.0) {
                return Some(format!("pairs.{name} has a negative value: {value}"));
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
    fn pairs_round_trip_and_are_omitted_if_absent() {
        let endpoint = PairEndpoint { rank: 3, host: "a".to_owned() };
        let one = || vec![vec![None]];
        let pairs = PairMatrices {
            endpoints: vec![endpoint],
            bandwidth: one(),
            latency_us: one(),
            latency_median_us: one(),
            findings: vec!["no outliers".to_owned()],
            ..PairMatrices::default()
        };
        let result = BenchResult { pairs: Some(pairs), ..BenchResult::default() };
        let text = to_json(&result).unwrap();
        assert_eq!(from_json::<BenchResult>(&text).unwrap(), result);
        let mismatched = text.replace("\"rank\": 3", "\"rank\": 3}, {\"rank\": 4");
        let error = from_json::<BenchResult>(&mismatched).unwrap_err().to_string();
        assert!(error.contains("not a 2 x 2 matrix"), "{error}");
        assert!(!to_json(&BenchResult::default()).unwrap().contains("pairs"));
    }

    #[test]
    fn matrices_must_have_the_dimension_of_the_endpoints() {
        let square = || vec![vec![None, Some(2.0)], vec![Some(1.5), None]];
        let endpoint = |rank| PairEndpoint { rank, host: "a".to_owned() };
        let valid = PairMatrices {
            endpoints: vec![endpoint(0), endpoint(4)],
            bandwidth: square(),
            latency_us: square(),
            latency_median_us: square(),
            ..PairMatrices::default()
        };
        assert_eq!(valid.inconsistency(), None);
        let short = PairMatrices { latency_us: vec![vec![None; 2]], ..valid.clone() };
        assert_eq!(short.inconsistency().unwrap(), "pairs.latency_us is not a 2 x 2 matrix");
        let mut negative = valid;
        negative.bandwidth[1][0] = Some(-1.0);
        assert_eq!(negative.inconsistency().unwrap(), "pairs.bandwidth has a negative value: -1");
    }
}
