//! The profile registry: built-in profiles, and the user's on top of them.

use super::{Profile, ProfileError, SiteSetting, parse};
use crate::batch;
use regatta_model::suggest::did_you_mean;

macro_rules! files {
    ($($name:literal)*) => {
        &[$((concat!($name, ".toml"), include_str!(concat!("../../profiles/", $name, ".toml")))),*]
    };
}

/// The built-in profiles; a base precedes the profiles that extend it.
const BUILTIN: &[(&str, &str)] = files! {
    "ethernet" "infiniband" "slingshot" "lumi-g" "frontier" "perlmutter" "polaris" "aurora" "alps"
    "jupiter" "marenostrum5-acc" "el-capitan" "dgx-h100"
};

type Result<T> = std::result::Result<T, ProfileError>;

/// Profiles by name, with inherited settings.
#[derive(Debug, Clone, Default)]
pub struct Profiles {
    /// As written, with their files, in order of reading; the last of a name is in effect.
    written: Vec<(String, Profile)>,
    /// The profiles in effect, with the settings of their bases, in the order of `written`.
    merged: Vec<Profile>,
}

impl Profiles {
    /// The built-in profiles.
    pub fn builtin() -> Result<Self> {
        let parse =
            |&(file, text): &(&str, &str)| Ok((file.to_owned(), Profile::parse(file, text)?));
        let written = BUILTIN.iter().map(parse).collect::<Result<_>>()?;
        Self { written, merged: Vec::new() }.merge()
    }

    /// Adds the profiles of a user's file: one, or several under `[[profile]]`. A profile with the
    /// name of an earlier one replaces it, also as the base of others, and may extend it.
    pub fn with_file(mut self, file: &str, text: &str) -> Result<Self> {
        let added = parse::profiles(file, text)?;
        self.written.extend(added.into_iter().map(|profile| (file.to_owned(), profile)));
        self.merge()
    }

    /// The profile with this name.
    pub fn named(&self, name: &str) -> Result<&Profile> {
        let hint = || did_you_mean(name, self.names());
        let unknown = || ProfileError::UnknownName { name: name.to_owned(), hint: hint() };
        self.merged.iter().find(|profile| profile.name == name).ok_or_else(unknown)
    }

    /// All names, in order of reading.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.merged.iter().map(|profile| profile.name.as_str())
    }

    /// All profiles, in order of reading.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Profile> {
        self.merged.iter()
    }

    fn merge(mut self) -> Result<Self> {
        self.merged.clear();
        for (at, (_, profile)) in self.written.iter().enumerate() {
            if self.position(&profile.name, self.written.len()) == Some(at) {
                self.merged.push(self.resolve(at, &mut Vec::new())?);
            }
        }
        Ok(self)
    }

    /// Index of the last profile with this name before `end`.
    fn position(&self, name: &str, end: usize) -> Option<usize> {
        self.written[..end].iter().rposition(|(_, profile)| profile.name == name)
    }

    /// The profile at an index with its inherited settings; `path` holds the profiles being
    /// resolved.
    fn resolve(&self, at: usize, path: &mut Vec<usize>) -> Result<Profile> {
        let (file, own) = &self.written[at];
        let Some(base) = &own.extends else { return inherit(file, &Profile::default(), own) };
        let (file, profile, base) = (file.clone(), own.name.clone(), base.clone());
        // A profile that extends its namesake refers to the one it replaces.
        let end = if base == profile { at } else { self.written.len() };
        let Some(base_at) = self.position(&base, end) else {
            let known = self.written.iter().map(|(_, p)| p.name.as_str());
            let hint = did_you_mean(&base, known.filter(|name| *name != profile));
            return Err(ProfileError::UnknownBase { file, profile, base, hint });
        };
        path.push(at);
        if path.contains(&base_at) {
            return Err(ProfileError::Cycle { file, profile, base });
        }
        inherit(&file, &self.resolve(base_at, path)?, own)
    }
}

/// Merges a profile with its base.
fn inherit(file: &str, base: &Profile, own: &Profile) -> Result<Profile> {
    let missing = own.without.iter().find(|v| !base.rules.iter().any(|r| r.variable == **v));
    if let Some(variable) = missing {
        return Err(ProfileError::UnknownExclusion {
            file: file.to_owned(),
            profile: own.name.clone(),
            variable: variable.clone(),
            hint: did_you_mean(variable, base.rules.iter().map(|r| r.variable.as_str())),
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
    merged.place.reserve = merged.place.reserve.or_else(|| base.place.reserve.clone());
    merged.place.smt = own.place.smt.or(base.place.smt);
    merged.fabric.interfaces = merged.fabric.interfaces.or_else(|| base.fabric.interfaces.clone());
    if own.fabric.host_suffix.is_empty() {
        merged.fabric.host_suffix.clone_from(&base.fabric.host_suffix);
    }
    if own.node_local.dirs.is_empty() {
        merged.node_local.clone_from(&base.node_local);
    }
    merged.batch = batch::merge(&base.batch, &own.batch);
    merged.rules = inherit_rules(base, own);
    Ok(merged)
}

/// The base's rules in order, with all rules of a variable replaced if `own` has any for it, then
/// the variables that only `own` has.
fn inherit_rules(base: &Profile, own: &Profile) -> Vec<SiteSetting> {
    let of = |variable: &str| -> Vec<SiteSetting> {
        own.rules.iter().filter(|r| r.variable == variable).cloned().collect()
    };
    let has = |rules: &[SiteSetting], rule: &SiteSetting| {
        rules.iter().any(|r| r.variable == rule.variable)
    };
    let mut rules: Vec<SiteSetting> = Vec::new();
    let inherited = base.rules.iter().filter(|r| !own.without.contains(&r.variable));
    for rule in inherited.chain(&own.rules) {
        match (has(&own.rules, rule), has(&rules, rule)) {
            (false, _) => rules.push(rule.clone()),
            (true, false) => rules.extend(of(&rule.variable)),
            (true, true) => {}
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site_profile::JobContext;
    use regatta_model::GpuVendor;

    const BASE: &str = r#"
        [[profile]]
        name = "base"
        match = { cluster = ["here"] }
        fabric = { interfaces = "hsn" }
        set = [
            { variable = "A", value = "base", why = "Because." },
            { variable = "B", value = "base", why = "Because." },
            { variable = "C", value = "base", why = "Because." },
        ]
        [[profile]]
        name = "child"
        extends = "base"
        without = ["C"]
        set = [
            { variable = "D", value = "child", why = "Because." },
            { variable = "A", value = "child, >9 nodes", why = "So.", when = { nodes = ">9" } },
        ]
    "#;

    fn lines(profiles: &Profiles, name: &str, nodes: u32) -> Vec<String> {
        let context = JobContext { nodes, ..JobContext::default() };
        let settings = profiles.named(name).unwrap().settings(&context);
        let line = |s: &super::super::SiteSetting| {
            format!("{}={} {}", s.variable, s.value.as_deref().unwrap_or("-"), s.profile)
        };
        settings.iter().map(line).collect()
    }

    fn fail(text: &str) -> String {
        Profiles::builtin().unwrap().with_file("my.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn settings_override_by_variable() {
        let profiles = Profiles::default().with_file("f", BASE).unwrap();
        // The child's rules replace all of the base's for A, even if their conditions are not met.
        assert_eq!(lines(&profiles, "child", 1), ["B=base base", "D=child child"]);
        let many_nodes = ["A=child, >9 nodes child", "B=base base", "D=child child"];
        assert_eq!(lines(&profiles, "child", 10), many_nodes);
        let child = profiles.named("child").unwrap();
        assert_eq!(child.fabric.interfaces.as_deref(), Some("hsn"));
        assert!(!child.matches.identifies_site(), "the base's match is not inherited");
        assert_eq!(child.title, "child");
    }

    #[test]
    fn namesake_replaces_and_may_extend() {
        let text = r#"
            name = "base"
            extends = "base"
            set = [{ variable = "B", unset = true, why = "Because." }]
        "#;
        let profiles = Profiles::default().with_file("f", BASE).unwrap();
        let profiles = profiles.with_file("my.toml", text).unwrap();
        assert_eq!(lines(&profiles, "base", 1), ["A=base base", "B=- base", "C=base base"]);
        assert_eq!(profiles.named("base").unwrap().matches.cluster, ["here"]);
        // Other profiles extend the replacement.
        assert_eq!(lines(&profiles, "child", 1), ["B=- base", "D=child child"]);
        assert_eq!(profiles.names().collect::<Vec<_>>(), ["child", "base"]);
    }

    #[test]
    fn base_setting_can_be_excluded() {
        let text = "name = \"lumi-g\"\nextends = \"lumi-g\"\nwithout = [\"NCCL_NET_GDR_LEVEL\"]\n";
        let amd = Some(GpuVendor::Amd);
        let context = JobContext { nodes: 2, vendor: amd, ..JobContext::default() };
        let set = |profiles: &Profiles| {
            let settings = profiles.named("lumi-g").unwrap().settings(&context);
            settings.iter().any(|s| s.variable == "NCCL_NET_GDR_LEVEL")
        };
        let builtin = Profiles::builtin().unwrap();
        assert!(set(&builtin));
        assert!(!set(&builtin.with_file("my.toml", text).unwrap()));
    }

    #[test]
    fn unknown_names_are_reported() {
        let unknown = Profiles::builtin().unwrap().named("lumig").unwrap_err();
        assert_eq!(unknown.to_string(), "unknown profile \"lumig\"; did you mean lumi-g?");
        let cases = [
            (
                "name = 'a'\nextends = 'slingshott'\n",
                r#"profile "a" extends the unknown profile "slingshott"; did you mean slingshot?"#,
            ),
            (
                "name = 'a'\nextends = 'slingshot'\nwithout = ['NCCL_NETT']\n",
                r#"profile "a" excludes "NCCL_NETT", which its base does not set; did you mean NCCL_NET?"#,
            ),
            (
                "profile = [{ name = 'a', extends = 'b' }, { name = 'b', extends = 'a' }]",
                r#"profile "b" extends itself through "a""#,
            ),
        ];
        for (text, message) in cases {
            assert_eq!(fail(text), format!("my.toml: {message}"));
        }
        assert!(fail("name = 'a'\nextends = 'a'\n").contains("extends the unknown profile"));
    }
}
