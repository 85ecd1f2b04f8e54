//! Batch settings of a site: the `[batch]` section of its profile.

use serde::Deserialize;

use super::BatchScheduler;
use crate::site_profile::Conditions;

/// What a site requires of batch jobs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSettings {
    /// The site's scheduler.
    pub scheduler: Option<BatchScheduler>,
    /// Options without which the site rejects a job.
    pub require: Vec<Requirement>,
    /// Default partition, queue or QOS.
    pub queue: Option<String>,
    /// Slurm option that `queue` and `--partition` are for.
    pub queue_option: Option<QueueOption>,
    /// Resources of each chunk of a PBS `select`.
    pub chunk: Option<String>,
    /// Whether a job requests the GPUs of its nodes; without it, it does.
    pub request_gpus: Option<bool>,
    /// Container runtime.
    pub container: Option<ContainerRuntime>,
    /// Options of Apptainer and SingularityCE; without it, the one for the GPUs' vendor.
    pub container_options: Option<Vec<String>>,
    /// Further directives.
    pub directives: Vec<BatchDirective>,
}

/// An option that a site requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requirement {
    /// `--account`.
    Account,
    /// `--partition`.
    Queue,
    /// `--time`.
    Time,
}

impl Requirement {
    /// The option and what it is for.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Account => "--account NAME (the project that is charged)",
            Self::Queue => "--partition NAME (the partition, queue or QOS)",
            Self::Time => "--time LIMIT (as in 2h or 01:30:00)",
        }
    }
}

/// The Slurm option that selects where a job waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueOption {
    /// `--partition`.
    #[default]
    Partition,
    /// `--qos`.
    Qos,
}

/// A program that runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContainerRuntime {
    /// Apptainer.
    Apptainer,
    /// SingularityCE.
    Singularity,
    /// NERSC's podman-hpc.
    PodmanHpc,
    /// CSCS's container engine, which srun starts.
    Edf,
}

/// A directive of a site, with the conditions under which it applies.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchDirective {
    /// The option with its value: `--constraint=gpu`.
    pub option: String,
    /// The reason, one sentence.
    pub why: String,
    /// Its conditions.
    #[serde(default)]
    pub when: Conditions,
}

/// The settings of a profile with those of its base where it has none.
pub fn merge(base: &BatchSettings, own: &BatchSettings) -> BatchSettings {
    let require = if own.require.is_empty() { &base.require } else { &own.require };
    let directives = if own.directives.is_empty() { &base.directives } else { &own.directives };
    BatchSettings {
        scheduler: own.scheduler.or(base.scheduler),
        require: require.clone(),
        queue: own.queue.clone().or_else(|| base.queue.clone()),
        queue_option: own.queue_option.or(base.queue_option),
        chunk: own.chunk.clone().or_else(|| base.chunk.clone()),
        request_gpus: own.request_gpus.or(base.request_gpus),
        container: own.container.or(base.container),
        container_options: own.container_options.clone().or_else(|| base.container_options.clone()),
        directives: directives.clone(),
    }
}
