//! The network that a job must use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::fabric_plugin::NETWORK;
use super::judge;
use super::report::{Gdr, NetReport, RankReport, describe_ranks};

/// A network that a job must use, as `AWS Libfabric`, `ofi`, `cxi`, `ib`; with `/GDRDMA` behind it also
/// GPUDirect RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    text: String,
    network: RequiredNetwork,
    gdr: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequiredNetwork {
    /// NCCL's own InfiniBand and RoCE network.
    Ib,
    Socket,
    /// A libfabric plug-in, with this provider.
    Libfabric {
        provider: Option<&'static str>,
    },
    /// A plug-in by its name in NCCL's log, in lower case without punctuation.
    Named(String),
}

/// Why a text is not a requirement.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "expected a network's name, as ib, ofi, cxi, efa, \"AWS Libfabric\" or socket; add /GDRDMA to require \
         GPUDirect RDMA"
)]
pub struct InvalidRequirement;

/// Result of a requirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequirementResult {
    /// The requirement.
    pub network: String,
    /// Whether all ranks fulfil it.
    pub satisfied: bool,
    /// Why it is not fulfilled, or not proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Requirement {
    type Err = InvalidRequirement;

    fn from_str(text: &str) -> Result<Self, InvalidRequirement> {
        let name = text.trim();
        let name = match name.get(..4) {
            Some(prefix) if prefix.eq_ignore_ascii_case("net/") => &name[4..],
            _ => name,
        };
        let (name, gdr) = match name.rsplit_once('/') {
            Some((name, flag)) if normalize(flag) == "gdrdma" || normalize(flag) == "gdr" => {
                (name, true)
            }
            Some(_) => return Err(InvalidRequirement),
            None => (name, false),
        };
        let network = match normalize(name).as_str() {
            "" => return Err(InvalidRequirement),
            "ib" | "infiniband" | "roce" | "verbs" => RequiredNetwork::Ib,
            "socket" | "tcp" => RequiredNetwork::Socket,
            "ofi" | "libfabric" | "awslibfabric" | "aws" | "awsofinccl" | "awsofirccl" => {
                RequiredNetwork::Libfabric { provider: None }
            }
            "cxi" | "slingshot" => RequiredNetwork::Libfabric { provider: Some("cxi") },
            "efa" => RequiredNetwork::Libfabric { provider: Some("efa") },
            other => RequiredNetwork::Named(other.to_owned()),
        };
        Ok(Self { text: text.trim().to_owned(), network, gdr })
    }
}

/// Why a rank does not fulfil a requirement.
#[derive(Debug, PartialEq, Eq)]
enum Shortfall {
    Violated(String),
    /// The log does not say it.
    Unproven(String),
}

impl Requirement {
    /// Checks all ranks of a report.
    pub fn check(&self, report: &NetReport) -> RequirementResult {
        let network = self.text.clone();
        let failed = |reason: String, fix| {
            let network = network.clone();
            RequirementResult { network, satisfied: false, reason: Some(reason), fix }
        };
        if report.ranks.is_empty() {
            let fix = judge::NO_RECORDS_FIX.to_owned();
            return failed("the log has no record of NCCL or RCCL".to_owned(), Some(fix));
        }
        let checked: Vec<(&RankReport, Shortfall)> = report
            .ranks
            .iter()
            .filter_map(|rank| Some((rank, self.check_rank(rank).err()?)))
            .collect();
        let is_violation = |(_, why): &&(_, Shortfall)| matches!(why, Shortfall::Violated(_));
        let Some((_, first)) = checked.iter().find(is_violation).or(checked.first()) else {
            return RequirementResult { network, satisfied: true, reason: None, fix: None };
        };
        let same = checked.iter().filter(|(_, why)| why == first);
        let ranks: Vec<&RankReport> = same.map(|(rank, _)| *rank).collect();
        let who = describe_ranks(&ranks, report.ranks.len());
        match first {
            Shortfall::Violated(why) => failed(format!("{who}: {why}"), self.fix(report, &ranks)),
            Shortfall::Unproven(why) => {
                let fix = "log the first collective with NCCL_DEBUG=INFO and \
                           NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET,ENV, on all ranks";
                failed(format!("not proven: {who}: {why}"), Some(fix.to_owned()))
            }
        }
    }

    /// Whether a rank provenly uses another network. More of the log cannot change that.
    pub fn is_violated(&self, report: &NetReport) -> bool {
        let violates = |rank| matches!(self.check_rank(rank), Err(Shortfall::Violated(_)));
        report.ranks.iter().any(violates)
    }

    fn fix(&self, report: &NetReport, ranks: &[&RankReport]) -> Option<String> {
        let rank = ranks.first()?;
        let right_network =
            match rank.networks_used().into_iter().next().or(rank.network.as_deref()) {
                Some(name) => self.is_network(name),
                None => false,
            };
        match &self.network {
            _ if right_network && self.gdr => Some(judge::gdr_fix(rank)),
            RequiredNetwork::Socket => Some("set NCCL_NET=Socket".to_owned()),
            RequiredNetwork::Named(_) => Some(judge::network_fix(rank, report, None)),
            wanted => Some(judge::network_fix(rank, report, Some(wanted))),
        }
    }

    fn is_network(&self, name: &str) -> bool {
        let name = normalize(name);
        match &self.network {
            RequiredNetwork::Ib => name == "ib" || name == "ibext" || name.starts_with("ibextv"),
            RequiredNetwork::Socket => name == "socket",
            RequiredNetwork::Libfabric { .. } => {
                name.contains("libfabric") || name == "ofi" || name == normalize(NETWORK)
            }
            RequiredNetwork::Named(required) => name == *required,
        }
    }

    fn check_rank(&self, rank: &RankReport) -> Result<(), Shortfall> {
        let unproven = |why: &str| Err(Shortfall::Unproven(why.to_owned()));
        let violated = |why: String| Err(Shortfall::Violated(why));
        let used = rank.networks_used();
        let networks = match (used.is_empty(), &rank.network) {
            (false, _) => used.into_iter().collect(),
            (true, Some(name)) => vec![name.as_str()],
            (true, None) => return unproven("no network and no channel between nodes"),
        };
        if let Some(wrong) = networks.iter().find(|name| !self.is_network(name)) {
            return violated(format!("NET/{wrong}, not {}", self.text));
        }
        if let RequiredNetwork::Libfabric { provider: Some(required) } = &self.network {
            match &rank.plugin.provider {
                Some(found) if found.split(';').any(|part| part == *required) => {}
                Some(found) => {
                    return violated(format!("libfabric provider {found}, not {required}"));
                }
                None => return unproven("libfabric's provider is not logged"),
            }
        }
        match rank.gdr {
            _ if !self.gdr => Ok(()),
            Gdr::On => Ok(()),
            // Without channels between nodes there is nothing to copy.
            Gdr::Unknown if rank.networks_used().is_empty() => Ok(()),
            Gdr::Unknown => unproven("GPUDirect RDMA is not logged"),
            gdr => violated(format!("GPUDirect RDMA is {}", gdr.name())),
        }
    }
}

/// Lower case, letters and digits only.
fn normalize(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_networks_are_accepted_as_users_write_them() {
        let network = |text: &str| text.parse::<Requirement>().unwrap();
        for name in
            ["AWS Libfabric", "aws libfabric", "ofi", "OFI", "NET/AWS Libfabric", "libfabric"]
        {
            assert_eq!(
                network(name).network,
                RequiredNetwork::Libfabric { provider: None },
                "{name}"
            );
            assert!(network(name).is_network("Libfabric") && !network(name).is_network("Socket"));
        }
        assert_eq!(network("InfiniBand").network, RequiredNetwork::Ib);
        assert!(network("ib/GDRDMA").gdr && network("ib").is_network("IB"));
        assert!(network("fastrak").is_network("FasTrak"));
        for invalid in ["", " ", "ib/fast", "/GDRDMA"] {
            assert!(invalid.parse::<Requirement>().is_err(), "{invalid}");
        }
    }
}
