//! What is measured: NCCL's default, and every algorithm with every protocol.

use crate::{Algorithm, Choice, Function, Protocol};

/// Variables that every candidate sets.
pub const VARIABLES: [&str; 2] = ["NCCL_ALGO", "NCCL_PROTO"];
/// Variables that candidates with a number of channels set.
pub const CHANNEL_VARIABLES: [&str; 2] = ["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"];

/// A choice, and the collectives that NCCL has it for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The choice.
    pub choice: Choice,
    /// The collectives to measure.
    pub functions: Vec<Function>,
}

impl Candidate {
    /// The environment that has NCCL make the choice. Other collectives keep NCCL's default, since the
    /// benchmark itself uses some.
    pub fn environment(&self) -> Vec<(String, String)> {
        let Choice { algorithm, protocol, channels } = self.choice;
        let by_function = |name: &str| {
            let of = |function: &Function| format!("{}:{name}", function.nccl_name());
            self.functions.iter().map(of).collect::<Vec<_>>().join(";")
        };
        let values = [by_function(algorithm.name()), by_function(protocol.name())];
        let mut all: Vec<(String, String)> =
            VARIABLES.map(str::to_owned).into_iter().zip(values).collect();
        if channels > 0 {
            all.extend(CHANNEL_VARIABLES.map(|name| (name.to_owned(), channels.to_string())));
        }
        all
    }
}

/// All candidates for these collectives: without a number of channels, and with each of `channels` where
/// it can be chosen.
pub fn candidates(functions: &[Function], channels: &[u8]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for algorithm in Algorithm::ALL {
        for protocol in Protocol::ALL {
            let supported = |function: &&Function| algorithm.supports(**function, protocol);
            let functions: Vec<Function> = functions.iter().filter(supported).copied().collect();
            if functions.is_empty() {
                continue;
            }
            let limits: &[u8] = if algorithm.has_channel_choice() { channels } else { &[] };
            let with = |channels: u8| Candidate {
                choice: Choice { algorithm, protocol, channels },
                functions: functions.clone(),
            };
            found.extend([0].into_iter().chain(limits.iter().copied()).map(with));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_what_nccl_supports() {
        let all = candidates(&Function::ALL, &[]);
        let names: Vec<String> = all.iter().map(|one| one.choice.to_string()).collect();
        let expected = [
            "tree ll",
            "tree ll128",
            "tree simple",
            "ring ll",
            "ring ll128",
            "ring simple",
            "collnetdirect simple",
            "collnetchain simple",
            "nvls simple",
            "nvlstree simple",
            "pat simple",
        ];
        assert_eq!(names, expected);
        assert_eq!(all[0].functions, [Function::AllReduce]);
        assert_eq!(all[3].functions, Function::ALL);
        let reduce = candidates(&[Function::Reduce], &[2, 4]);
        let names: Vec<String> = reduce.iter().map(|one| one.choice.to_string()).collect();
        assert_eq!(names[..3], ["ring ll", "ring ll channels=2", "ring ll channels=4"]);
        assert_eq!(names.len(), 9);
    }

    #[test]
    fn the_environment_limits_only_the_measured_collectives() {
        let choice = Choice { algorithm: Algorithm::Pat, protocol: Protocol::Simple, channels: 0 };
        let functions = vec![Function::AllGather, Function::ReduceScatter];
        let pat = Candidate { choice, functions };
        let words = |candidate: &Candidate| {
            let all = candidate.environment();
            all.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let expected = [
            "NCCL_ALGO=allgather:pat;reducescatter:pat",
            "NCCL_PROTO=allgather:simple;reducescatter:simple",
        ];
        assert_eq!(words(&pat), expected);
        let ring = &candidates(&[Function::Reduce], &[2])[1];
        let expected = [
            "NCCL_ALGO=reduce:ring",
            "NCCL_PROTO=reduce:ll",
            "NCCL_MIN_NCHANNELS=2",
            "NCCL_MAX_NCHANNELS=2",
        ];
        assert_eq!(words(ring), expected);
    }
}
