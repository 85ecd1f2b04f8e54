//! Variables that are already set: by the user, by another launcher, or by Regatta in an enclosing
//! script.

use regatta_model::hash::fnv1a;

use crate::environment::{EnvVar, var};

/// Variables that differ between the ranks of a job or between its nodes.
const RANK_SPECIFIC: [&str; 17] = [
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "LOCAL_SIZE",
    "CROSS_RANK",
    "HOROVOD_HOSTNAME",
    "HOROVOD_RANK",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "OMPI_MCA_orte_hnp_uri",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "JAX_LOCAL_DEVICE_IDS",
    "REGATTA_BIND",
];

/// Variables that follow from the job and the placement: their earlier values are replaced.
const PLACEMENT: [&str; 18] = [
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "CROSS_SIZE",
    "HOROVOD_SIZE",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ZE_AFFINITY_MASK",
];

/// Variables of a rank's identity. Other launchers set them, too.
const IDENTITY: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// Whether a variable differs between the ranks of a job or between its nodes.
pub fn is_rank_specific(variable: &str) -> bool {
    RANK_SPECIFIC.contains(&variable)
}

/// Name of the variable that lists the variables which Regatta has set, so that it tells its own
/// values from the user's: `RANK,OMP_NUM_THREADS:1f2e`, with a hash of those that a user may change.
pub const OWN_VARIABLES: &str = "REGATTA_ENV";

/// The variable that lists these variables, except those with a value of the user's.
pub fn own_variables(vars: &[EnvVar], inherited: &InheritedEnv<'_>) -> EnvVar {
    let is_own = |v: &&EnvVar| v.value.is_none() || inherited.foreign(&v.variable) != v.value;
    let entry = |v: &EnvVar| match is_keepable(&v.variable) {
        true => Some(format!("{}:{:04x}", v.variable, checksum(v.value.as_deref()?))),
        false => Some(v.variable.clone()),
    };
    let entries: Vec<String> = vars.iter().filter(is_own).filter_map(entry).collect();
    let why = "the variables that regatta has set; other values are the user's and kept";
    var(OWN_VARIABLES, entries.join(","), why)
}

fn is_keepable(variable: &str) -> bool {
    !is_rank_specific(variable) && !PLACEMENT.contains(&variable)
}

fn checksum(value: &str) -> u16 {
    fnv1a(value.bytes()) as u16
}

/// An environment in which variables of Regatta and of the user are distinguished.
pub struct InheritedEnv<'a> {
    /// Looks up a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

impl InheritedEnv<'_> {
    /// The value of a variable, unless Regatta has set it.
    pub fn foreign(&self, name: &str) -> Option<String> {
        let value = (self.variable)(name).filter(|value| !value.is_empty())?;
        let own = (self.variable)(OWN_VARIABLES).unwrap_or_default();
        let is_own = |entry: &str| match entry.split_once(':') {
            Some((own, hash)) => own == name && hash == format!("{:04x}", checksum(&value)),
            None => entry == name,
        };
        (!own.split(',').any(is_own)).then_some(value)
    }

    /// Keeps the values of variables that the user has set, except those that follow from the
    /// placement. Returns the variables that are kept with another value than the planned one.
    pub fn keep(&self, vars: &mut [EnvVar]) -> Vec<KeptVariable> {
        let mut kept = Vec::new();
        for v in vars.iter_mut().filter(|v| is_keepable(&v.variable)) {
            let (Some(planned), Some(value)) = (&v.value, self.foreign(&v.variable)) else {
                continue;
            };
            if value == *planned {
                continue;
            }
            let (variable, planned) = (v.variable.clone(), planned.clone());
            v.why = format!("already set, and kept; regatta would set {planned}: {}", v.why);
            v.value = Some(value.clone());
            kept.push(KeptVariable { variable, value, planned });
        }
        kept
    }

    /// The first identity variable that another launcher has set to another value than the planned
    /// one.
    pub fn contradiction(&self, vars: &[EnvVar]) -> Option<KeptVariable> {
        let planned = vars.iter().filter(|v| IDENTITY.contains(&v.variable.as_str()));
        planned.into_iter().find_map(|v| {
            let (planned, value) = (v.value.clone()?, self.foreign(&v.variable)?);
            let differs = value.trim() != planned;
            differs.then(|| KeptVariable { variable: v.variable.clone(), value, planned })
        })
    }

    /// Rank and world size of this process in a job of several ranks that another launcher started.
    pub fn foreign_rank(&self) -> Option<(u32, u32)> {
        let number = |name| self.foreign(name)?.trim().parse().ok();
        let (rank, size) = (number("RANK")?, number("WORLD_SIZE")?);
        (size > 1).then_some((rank, size))
    }
}

/// A variable with a value of the user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptVariable {
    /// Name.
    pub variable: String,
    /// Its value.
    pub value: String,
    /// The value that it would get.
    pub planned: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vars(pairs: &[(&str, &str)]) -> Vec<EnvVar> {
        pairs.iter().map(|(name, value)| var(name, value, "planned")).collect()
    }

    fn lookup<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn rank_of_another_launcher_is_one_of_several() {
        let rank =
            |pairs: &[(&str, &str)]| InheritedEnv { variable: &lookup(pairs) }.foreign_rank();
        assert_eq!(rank(&[("RANK", "1"), ("WORLD_SIZE", "2")]), Some((1, 2)));
        assert_eq!(rank(&[("RANK", "0"), ("WORLD_SIZE", "1")]), None);
        assert_eq!(rank(&[("WORLD_SIZE", "2")]), None);
        assert_eq!(rank(&[("RANK", ""), ("WORLD_SIZE", "2")]), None);
        let own = [("RANK", "1"), ("WORLD_SIZE", "2"), (OWN_VARIABLES, "RANK,WORLD_SIZE")];
        assert_eq!(rank(&own), None);
    }

    const PLANNED: [(&str, &str); 4] = [
        ("RANK", "3"),
        ("OMP_NUM_THREADS", "7"),
        ("NCCL_SOCKET_IFNAME", "hsn"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
    ];

    #[test]
    fn values_of_the_user_are_kept_except_the_placement() {
        let user = [("OMP_NUM_THREADS", "4"), ("CUDA_VISIBLE_DEVICES", "1"), ("RANK", "")];
        let (mut planned, user) = (vars(&PLANNED), lookup(&user));
        let kept = InheritedEnv { variable: &user }.keep(&mut planned);
        assert_eq!(kept.len(), 1);
        assert_eq!((kept[0].variable.as_str(), kept[0].value.as_str()), ("OMP_NUM_THREADS", "4"));
        assert_eq!(kept[0].planned, "7");
        assert_eq!(planned[1].value.as_deref(), Some("4"));
        assert_eq!(planned[1].why, "already set, and kept; regatta would set 7: planned");
        assert_eq!(planned[3].value.as_deref(), Some("0,1"));
        let own = own_variables(&planned, &InheritedEnv { variable: &user }).value.unwrap();
        assert!(!own.contains("OMP_NUM_THREADS"), "{own}");
    }

    #[test]
    fn own_values_are_not_taken_for_the_users() {
        let own = own_variables(&vars(&PLANNED), &InheritedEnv { variable: &|_| None });
        let own = own.value.unwrap();
        assert!(own.starts_with("RANK,OMP_NUM_THREADS:"), "{own}");
        let env = [(OWN_VARIABLES, own.as_str()), ("RANK", "0"), ("OMP_NUM_THREADS", "7")];
        let env = lookup(&env);
        let inherited = InheritedEnv { variable: &env };
        assert_eq!((inherited.foreign("RANK"), inherited.foreign("OMP_NUM_THREADS")), (None, None));
        assert_eq!(inherited.contradiction(&vars(&PLANNED)), None);
        let changed = [(OWN_VARIABLES, own.as_str()), ("OMP_NUM_THREADS", "1")];
        let changed = lookup(&changed);
        let user = InheritedEnv { variable: &changed }.foreign("OMP_NUM_THREADS");
        assert_eq!(user.as_deref(), Some("1"), "changed by the user since");
    }

    #[test]
    fn ranks_of_other_launchers_contradict() {
        let kubeflow = [("RANK", "1"), ("WORLD_SIZE", "2")];
        let kubeflow = lookup(&kubeflow);
        let found = InheritedEnv { variable: &kubeflow }.contradiction(&vars(&PLANNED)).unwrap();
        assert_eq!((found.variable.as_str(), found.value.as_str()), ("RANK", "1"));
        let equal = [("RANK", "3")];
        let equal = lookup(&equal);
        assert_eq!(InheritedEnv { variable: &equal }.contradiction(&vars(&PLANNED)), None);
    }

    proptest! {
        #[test]
        fn own_variables_are_recognised(name in "[A-Z_]{1,12}", value in "\\PC{1,20}") {
            let list = own_variables(&vars(&[(&name, &value)]), &InheritedEnv { variable: &|_| None });
            let list = list.value.unwrap();
            let env = [(OWN_VARIABLES, list.as_str()), (&name, &value)];
            let env = lookup(&env);
            prop_assert_eq!(InheritedEnv { variable: &env }.foreign(&name), None);
        }
    }
}
