//! Compares the model's host lists with Slurm's on a thousand random expressions.
//!
//! Excluded is where Debian's Slurm 22.05 differs from newer versions, which we follow: text after a
//! bracket group (rejected) and newlines (not separators). Also excluded is what Slurm accepts and we
//! reject, because no scheduler writes it: unbalanced brackets, signs and spaces before a number,
//! open ranges such as `1-`, and integers beyond 64 bits.

use regatta_model::hostlist::{compress, expand};
use regatta_testbed::{Random, or_skip, run};
use std::path::PathBuf;
use std::process::Command;

const EXPRESSIONS: u32 = 1000;
const LISTS: u32 = 100;
/// Longer lists only take more time.
const MAX_HOSTS: usize = 3000;
const SEED: u64 = 0x5eed_2205;

/// Random host lists.
struct HostLists(Random);

impl HostLists {
    fn number(&mut self) -> String {
        let number = match self.0.below(5) {
            0 => self.0.below(10),
            1 => self.0.below(100),
            2 => 95 + self.0.below(10),
            3 => 995 + self.0.below(10),
            _ => self.0.below(3000),
        };
        let width = if self.0.below(3) == 0 { self.0.below(7) as usize } else { 0 };
        format!("{number:0width$}")
    }

    fn range(&mut self, invalid: bool) -> String {
        match self.0.below(100) {
            0 if invalid => self
                .0
                .pick(&["", "x", "1-2-3", "-1", "1x", "0x1", "1-x", "--", "5-3", "1 "])
                .to_owned(),
            1 if invalid => self.0.pick(&["0-65536", "7-65543", "0-99999"]).to_owned(),
            0..40 => self.number(),
            _ => {
                let low = self.number();
                let high = low.parse::<u64>().unwrap() + self.0.below(12);
                let width = if self.0.below(4) == 0 { self.0.below(6) as usize } else { low.len() };
                format!("{low}-{high:0width$}")
            }
        }
    }

    fn group(&mut self, invalid: bool) -> String {
        let ranges: Vec<String> = (0..1 + self.0.below(3)).map(|_| self.range(invalid)).collect();
        format!("[{}]", ranges.join(","))
    }

    fn name(&mut self) -> String {
        let text = ["n", "nid", "a-b", "x.y", "r1", "N_", "", "rack07-", "é"];
        let groups = [0, 0, 1, 1, 1, 1, 2, 2, 3][self.0.below(9) as usize];
        if groups == 0 {
            let name = format!("{}{}", self.0.pick(&["n", "login", "a-b", "x.y"]), self.number());
            return if self.0.below(3) == 0 { format!("{name}s") } else { name };
        }
        // Slurm silently drops a name with an error in a group before the last two.
        let invalid = groups <= 2;
        (0..groups).map(|_| format!("{}{}", self.0.pick(&text), self.group(invalid))).collect()
    }

    fn expression(&mut self) -> String {
        let mut text = String::new();
        for i in 0..1 + self.0.below(4) {
            if i > 0 {
                text += self.0.pick(&[",", ",", ",", " ", "\t", ",,", ", "]);
            }
            text += &self.name();
        }
        text + self.0.pick(&["", "", "", "", ",", " "])
    }
}

/// `scontrol` with a minimal configuration; it contacts no daemon.
struct Scontrol {
    conf: PathBuf,
}

impl Scontrol {
    fn new(test: &str) -> Option<Self> {
        let conf = std::env::temp_dir().join(format!("{test}-{}.conf", std::process::id()));
        std::fs::write(&conf, "ClusterName=t\nSlurmctldHost=localhost\nNodeName=x\n").unwrap();
        let scontrol = Self { conf };
        let mut trial = Command::new("scontrol");
        trial.args(["show", "hostnames", "n1"]).env("SLURM_CONF", &scontrol.conf);
        let missing = match run(&mut trial) {
            Ok(output) if output.status.success() => vec![],
            _ => vec!["no program scontrol (Debian package slurm-client)".to_owned()],
        };
        or_skip(&missing)?;
        Some(scontrol)
    }

    /// Slurm's expansion of an expression; `None` if it is rejected.
    fn hostnames(&self, text: &str) -> Option<Vec<String>> {
        let mut command = Command::new("scontrol");
        command.args(["show", "hostnames", text]).env("SLURM_CONF", &self.conf);
        let output = run(&mut command).unwrap();
        assert!(output.status.success(), "{text:?}: {}", output.stderr);
        let rejected = format!("{}{}", output.stdout, output.stderr).contains("Invalid hostlist");
        (!rejected).then(|| output.stdout.lines().map(str::to_owned).collect())
    }
}

impl Drop for Scontrol {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.conf);
    }
}

#[test]
fn expand_agrees_with_scontrol() {
    let Some(scontrol) = Scontrol::new("expand-agrees") else { return };
    let mut random = HostLists(Random::new(SEED));
    let mut rejected = 0;
    let mut mismatches = Vec::new();
    for _ in 0..EXPRESSIONS {
        let text = std::iter::repeat_with(|| random.expression())
            .find(|text| expand(text).map_or(true, |hosts| hosts.len() <= MAX_HOSTS))
            .unwrap();
        let (ours, theirs) = (expand(&text), scontrol.hostnames(&text));
        rejected += u32::from(theirs.is_none());
        if ours.as_ref().ok() != theirs.as_ref() {
            mismatches.push(format!("{text:?}\n  ours   {ours:?}\n  theirs {theirs:?}"));
        }
    }
    let some = mismatches.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(mismatches.is_empty(), "{} of {EXPRESSIONS} differ, such as\n{some}", mismatches.len());
    assert!((30..EXPRESSIONS / 2).contains(&rejected), "{rejected} rejected: unbalanced sample");
}

#[test]
fn scontrol_expands_compressed_lists() {
    let Some(scontrol) = Scontrol::new("scontrol-expands") else { return };
    let mut random = HostLists(Random::new(SEED + 1));
    let mut shortened = 0;
    for _ in 0..LISTS {
        let mut hosts = Vec::new();
        while hosts.len() < 20 {
            let expression = random.name();
            let Ok(more) = expand(&expression) else { continue };
            hosts.extend(more.into_iter().take(30));
        }
        let text = compress(&hosts);
        shortened += u32::from(text.len() < hosts.join(",").len());
        assert_eq!(scontrol.hostnames(&text).as_ref(), Some(&hosts), "{text:?}");
    }
    assert!(shortened > LISTS / 2, "only {shortened} lists became shorter");
}
