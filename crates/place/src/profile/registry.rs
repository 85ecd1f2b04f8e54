//! All known profiles: the built-in ones, and a user's own on top of them.

use super::nearest::hint;
use super::{Profile, ProfileError, Rule, read};

/// The built-in profiles; what a profile extends stands before it.
const BUILTIN: [(&str, &str); 13] = [
    ("ethernet.toml", include_str!("../../profiles/ethernet.toml")),
    ("infiniband.toml", include_str!("../../profiles/infiniband.toml")),
    ("slingshot.toml", include_str!("../../profiles/slingshot.toml")),
    ("lumi-g.toml", include_str!("../../profiles/lumi-g.toml")),
    ("frontier.toml", include_str!("../../profiles/frontier.toml")),
    ("perlmutter.toml", include_str!("../../profiles/perlmutter.toml")),
    ("polaris.toml", include_str!("../../profiles/polaris.toml")),
    ("aurora.toml", include_str!("../../profiles/aurora.toml")),
    ("alps.toml", include_str!("../../profiles/alps.toml")),
    ("jupiter.toml", include_str!("../../profiles/jupiter.toml")),
    ("marenostrum5-acc.toml", include_str!("../../profiles/marenostrum5-acc.toml")),
    ("el-capitan.toml", include_str!("../../profiles/el-capitan.toml")),
    ("dgx-h100.toml", include_str!("../../profiles/dgx-h100.toml")),
];

/// Profiles by name, each with what it inherits.
#[derive(Debug, Clone, Default)]
pub struct Profiles {
    /// As written, with their files, in the order read: of two with one name the later counts.
    written: Vec<(String, Profile)>,
    /// The ones that count, with their bases' settings brought in, in the order of `written`.
    merged: Vec<Profile>,
}

impl Profiles {
    /// The built-in profiles.
    pub fn builtin() -> Result<Self, ProfileError> {
        let mut profiles = Self::default();
        for (file, text) in BUILTIN {
            profiles.written.push((file.to_owned(), Profile::parse(file, text)?));
        }
        profiles.merge()
    }

    /// These and the profiles of a user's file: one, or several under `[[profile]]`. One with the
    /// name of an earlier profile replaces it, also as the base of others; it may extend the one
    /// it replaces.
    pub fn with_file(mut self, file: &str, text: &str) -> Result<Self, ProfileError> {
        let added = read::profiles(file, text)?;
        self.written.extend(added.into_iter().map(|profile| (file.to_owned(), profile)));
        self.merge()
    }

    /// The profile with this name.
    pub fn named(&self, name: &str) -> Result<&Profile, ProfileError> {
        self.merged.iter().find(|profile| profile.name == name).ok_or_else(|| {
            ProfileError::UnknownName { name: name.to_owned(), hint: hint(name, self.names()) }
        })
    }

    /// All names, in the order read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.merged.iter().map(|profile| profile.name.as_str())
    }

    /// All profiles, in the order read.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.merged.iter()
    }

    fn merge(mut self) -> Result<Self, ProfileError> {
        self.merged.clear();
        for (at, (_, profile)) in self.written.iter().enumerate() {
            let latest = self.position(&profile.name, self.written.len());
            if latest == Some(at) {
                self.merged.push(self.resolve(at, &mut Vec::new())?);
            }
        }
        Ok(self)
    }

    /// Where the last profile of this name stands, looking before `end`.
    fn position(&self, name: &str, end: usize) -> Option<usize> {
        self.written[..end].iter().rposition(|(_, profile)| profile.name == name)
    }

    /// The profile at a position with everything it inherits; `path` holds those that wait for it.
    fn resolve(&self, at: usize, path: &mut Vec<usize>) -> Result<Profile, ProfileError> {
        let (file, profile) = &self.written[at];
        let Some(base_name) = &profile.extends else {
            return inherit(file, &Profile::default(), profile);
        };
        // A profile that extends its namesake means the one it replaces.
        let end = if *base_name == profile.name { at } else { self.written.len() };
        let Some(base_at) = self.position(base_name, end) else {
            let known = self.written.iter().map(|(_, p)| p.name.as_str());
            return Err(ProfileError::UnknownBase {
                file: file.clone(),
                profile: profile.name.clone(),
                base: base_name.clone(),
                hint: hint(base_name, known.filter(|name| *name != profile.name)),
            });
        };
        path.push(at);
        if path.contains(&base_at) {
            return Err(ProfileError::Circle {
                file: file.clone(),
                profile: profile.name.clone(),
                base: base_name.clone(),
            });
        }
        let base = self.resolve(base_at, path)?;
        inherit(file, &base, profile)
    }
}

/// A profile with what it takes over from its base.
fn inherit(file: &str, base: &Profile, own: &Profile) -> Result<Profile, ProfileError> {
    let missing = own.without.iter().find(|v| !base.rules.iter().any(|r| r.variable == **v));
    if let Some(variable) = missing {
        return Err(ProfileError::NothingToLeaveOut {
            file: file.to_owned(),
            profile: own.name.clone(),
            variable: variable.clone(),
            hint: hint(variable, base.rules.iter().map(|r| r.variable.as_str())),
        });
    }
    let mut merged = own.clone();
    let namesake = base.name == own.name;
    if namesake && own.matches == Default::default() {
        merged.matches = base.matches.clone();
    }
    if own.title.is_empty() {
        merged.title = if namesake { base.title.clone() } else { own.name.clone() };
    }
    merged.place.reserve = own.place.reserve.clone().or_else(|| base.place.reserve.clone());
    merged.place.smt = own.place.smt.or(base.place.smt);
    merged.fabric.interfaces =
        own.fabric.interfaces.clone().or_else(|| base.fabric.interfaces.clone());
    if own.fabric.host_suffix.is_empty() {
        merged.fabric.host_suffix.clone_from(&base.fabric.host_suffix);
    }
    if own.node_local.dirs.is_empty() {
        merged.node_local.dirs.clone_from(&base.node_local.dirs);
    }
    merged.rules = inherit_rules(base, own);
    Ok(merged)
}

/// The base's rules in their order, each variable that `own` speaks of decided by `own` alone, and
/// then what only `own` has.
fn inherit_rules(base: &Profile, own: &Profile) -> Vec<Rule> {
    let of = |variable: &str| -> Vec<Rule> {
        own.rules.iter().filter(|r| r.variable == variable).cloned().collect()
    };
    let mut rules: Vec<Rule> = Vec::new();
    for rule in base.rules.iter().filter(|r| !own.without.contains(&r.variable)) {
        let has_own = own.rules.iter().any(|r| r.variable == rule.variable);
        match (has_own, rules.iter().any(|r| r.variable == rule.variable)) {
            (false, _) => rules.push(rule.clone()),
            (true, false) => rules.extend(of(&rule.variable)),
            (true, true) => {}
        }
    }
    for rule in &own.rules {
        if !rules.iter().any(|r| r.variable == rule.variable) {
            rules.extend(of(&rule.variable));
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Situation;
    use regatta_model::GpuVendor;

    const BASE: &str = r#"
        [[profile]]
        name = "base"
        [profile.match]
        cluster = ["here"]
        [profile.fabric]
        interfaces = "hsn"
        [[profile.set]]
        variable = "A"
        value = "base"
        why = "Because."
        [[profile.set]]
        variable = "B"
        value = "base"
        why = "Because."
        [[profile.set]]
        variable = "C"
        value = "base"
        why = "Because."
        [[profile]]
        name = "child"
        extends = "base"
        without = ["C"]
        [[profile.set]]
        variable = "D"
        value = "child"
        why = "Because."
        [[profile.set]]
        variable = "A"
        value = "child, many nodes"
        why = "Because."
        when = { nodes = ">9" }
    "#;

    fn lines(profiles: &Profiles, name: &str, nodes: u32) -> Vec<String> {
        let situation = Situation { nodes, ..Situation::default() };
        let settings = profiles.named(name).unwrap().settings(&situation);
        let line = |s: &super::super::Setting| {
            format!("{}={} {}", s.variable, s.value.as_deref().unwrap_or("-"), s.from_profile)
        };
        settings.iter().map(line).collect()
    }

    fn fail(text: &str) -> String {
        Profiles::builtin().unwrap().with_file("my.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn own_settings_override_by_variable() {
        let profiles = Profiles::default().with_file("f", BASE).unwrap();
        // A is the child's affair altogether, even where its condition does not hold.
        assert_eq!(lines(&profiles, "child", 1), ["B=base base", "D=child child"]);
        assert_eq!(
            lines(&profiles, "child", 10),
            ["A=child, many nodes child", "B=base base", "D=child child"]
        );
        let child = profiles.named("child").unwrap();
        assert_eq!(child.fabric.interfaces.as_deref(), Some("hsn"));
        assert!(!child.matches.names_a_site(), "a base's match is not its child's");
        assert_eq!(child.title, "child");
    }

    #[test]
    fn a_namesake_replaces_and_may_extend() {
        let text = r#"
            name = "base"
            extends = "base"
            [[set]]
            variable = "B"
            unset = true
            why = "Because."
        "#;
        let profiles = Profiles::default().with_file("f", BASE).unwrap();
        let profiles = profiles.with_file("my.toml", text).unwrap();
        assert_eq!(lines(&profiles, "base", 1), ["A=base base", "B=- base", "C=base base"]);
        assert_eq!(profiles.named("base").unwrap().matches.cluster, ["here"]);
        // What others extend is the new one.
        assert_eq!(lines(&profiles, "child", 1), ["B=- base", "D=child child"]);
        assert_eq!(profiles.names().collect::<Vec<_>>(), ["child", "base"]);
    }

    #[test]
    fn gpu_rdma_is_easy_to_turn_off() {
        let text = "name = \"lumi-g\"\nextends = \"lumi-g\"\nwithout = [\"NCCL_NET_GDR_LEVEL\"]\n";
        let situation =
            Situation { nodes: 2, vendor: Some(GpuVendor::Amd), ..Situation::default() };
        let set = |profiles: &Profiles| {
            let settings = profiles.named("lumi-g").unwrap().settings(&situation);
            settings.iter().any(|s| s.variable == "NCCL_NET_GDR_LEVEL")
        };
        let builtin = Profiles::builtin().unwrap();
        assert!(set(&builtin));
        assert!(!set(&builtin.with_file("my.toml", text).unwrap()));
    }

    #[test]
    fn wrong_names_are_named() {
        let unknown = Profiles::builtin().unwrap().named("lumig").unwrap_err();
        assert_eq!(unknown.to_string(), "there is no profile \"lumig\"; did you mean lumi-g?");
        assert_eq!(
            fail("name = \"a\"\nextends = \"slingshott\"\n"),
            "my.toml: profile \"a\" extends \"slingshott\", which does not exist; \
             did you mean slingshot?"
        );
        assert_eq!(
            fail("name = \"a\"\nextends = \"slingshot\"\nwithout = [\"NCCL_NETT\"]\n"),
            "my.toml: profile \"a\" is without \"NCCL_NETT\", which its base never sets; \
             did you mean NCCL_NET?"
        );
        assert!(fail("name = \"a\"\nextends = \"a\"\n").contains("which does not exist"));
        let circle = "[[profile]]\nname = \"a\"\nextends = \"b\"\n\
                      [[profile]]\nname = \"b\"\nextends = \"a\"\n";
        assert_eq!(fail(circle), "my.toml: profile \"b\" extends itself, by way of \"a\"");
    }
}
