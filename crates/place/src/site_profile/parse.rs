//! TOML parser of profiles. Errors have file and line and, for an unknown key, the closest known
//! one.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use regatta_model::ReservedCores;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};

use super::conditions::{Conditions, Constraint, PluginCondition};
use super::{Profile, ProfileError, RequiredOptions, SiteSetting};
use regatta_model::suggest::did_you_mean;

/// A file with several profiles.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Several {
    profile: Vec<Profile>,
}

/// Parses a file with one profile.
pub(super) fn profile(file: &str, text: &str) -> Result<Profile, ProfileError> {
    let mut profile: Profile = parse(file, text)?;
    set_origin(&mut profile);
    Ok(profile)
}

/// Parses a file with one profile, or with several under `[[profile]]`.
pub(super) fn profiles(file: &str, text: &str) -> Result<Vec<Profile>, ProfileError> {
    let table: toml::Table = parse(file, text)?;
    if !table.contains_key("profile") {
        return Ok(vec![profile(file, text)?]);
    }
    let mut profiles = parse::<Several>(file, text)?.profile;
    profiles.iter_mut().for_each(set_origin);
    for (i, profile) in profiles.iter().enumerate() {
        if profiles[..i].iter().any(|other| other.name == profile.name) {
            let profile = profile.name.clone();
            return Err(ProfileError::Duplicate { file: file.to_owned(), profile });
        }
    }
    Ok(profiles)
}

/// Records the profile's name in its rules, because it is needed after inheritance.
fn set_origin(profile: &mut Profile) {
    for rule in &mut profile.rules {
        rule.profile.clone_from(&profile.name);
    }
}

fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ProfileError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..start].iter().filter(|&&b| b == b'\n').count();
        let message = rewrite_message(error.message());
        ProfileError::Syntax { file: file.to_owned(), line, message }
    })
}

/// serde reports ``unknown field `vlaue`, expected one of `variable`, `value` ``; users want the
/// closest one. Other messages are returned unchanged.
fn rewrite_message(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(unknown)) => {
            format!("unknown key {unknown:?}; {}", did_you_mean(unknown, quoted))
        }
        _ => message.trim_end().replace('\n', " "),
    }
}

/// A setting as written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSetting {
    variable: String,
    #[serde(default)]
    value: Option<Scalar>,
    #[serde(default)]
    unset: bool,
    why: String,
    #[serde(default)]
    when: Conditions,
    #[serde(default)]
    requires: RequiredOptions,
}

impl TryFrom<RawSetting> for SiteSetting {
    type Error = String;

    fn try_from(raw: RawSetting) -> Result<Self, String> {
        let RawSetting { variable, value, unset, why, when, requires } = raw;
        let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let starts_with_digit = variable.starts_with(|c: char| c.is_ascii_digit());
        if variable.is_empty() || starts_with_digit || !variable.chars().all(is_valid) {
            return Err(format!("{variable:?} is not a valid environment variable name"));
        }
        let value = value.map(|scalar| scalar.0);
        if value.is_some() == unset {
            return Err(format!("{variable} needs either value or unset = true"));
        }
        if value.as_ref().is_some_and(|v| v.contains(['\0', '\n'])) {
            return Err(format!("the value of {variable} must be a single line"));
        }
        if why.trim().is_empty() {
            return Err(format!("{variable} needs a reason: why = \"…\""));
        }
        let options = requires.srun.iter().chain(&requires.pals);
        if let Some(option) = options.into_iter().find(|option| !is_option(option)) {
            return Err(format!(
                "{variable} requires {option:?}, which is not an option: --name=value"
            ));
        }
        Ok(SiteSetting { variable, value, why, when, requires, profile: String::new() })
    }
}

/// Whether a text is a long option, as one word that needs no quotes in a script.
fn is_option(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+".contains(c);
    text.strip_prefix("--").is_some_and(|name| !name.is_empty()) && text.chars().all(is_part)
}

/// A string, or an integer meant as one.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an integer")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl<'de> Deserialize<'de> for Constraint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Scalar::deserialize(deserializer)?.0.parse().map_err(D::Error::custom)
    }
}

/// A name for the command line.
pub(super) fn name<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let name = String::deserialize(d)?;
    let valid = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
    if valid { Ok(name) } else { Err(D::Error::custom("a profile name is a single word")) }
}

/// `true`, `false`, or a version.
pub(super) fn plugin<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PluginCondition>, D::Error> {
    struct PluginVisitor;
    impl Visitor<'_> for PluginVisitor {
        type Value = PluginCondition;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true, false or a version constraint")
        }
        fn visit_bool<E: Error>(self, installed: bool) -> Result<PluginCondition, E> {
            Ok(PluginCondition::Installed(installed))
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<PluginCondition, E> {
            text.parse().map(PluginCondition::Version).map_err(E::custom)
        }
    }
    d.deserialize_any(PluginVisitor).map(Some)
}

/// `first-of-l3`, `none` or a list of CPUs.
pub(super) fn reserve<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ReservedCores>, D::Error> {
    let text = String::deserialize(d)?;
    let reserve = match text.as_str() {
        "none" => ReservedCores::None,
        "first-of-l3" => ReservedCores::FirstOfL3,
        list => ReservedCores::Cpus(list.parse().map_err(|error| {
            let expected = "reserve must be \"first-of-l3\", \"none\" or a CPU list";
            D::Error::custom(format!("{expected}: {error}"))
        })?),
    };
    Ok(Some(reserve))
}

/// One value, or a list of them.
pub(super) fn one_or_more<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct OneOrMore<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or a list of strings")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            Ok(vec![T::deserialize(StrDeserializer::new(text))?])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }
    }
    deserializer.deserialize_any(OneOrMore(PhantomData))
}

/// Names, each with one value or a list of them.
pub(super) fn value_lists<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    #[derive(serde::Deserialize)]
    struct Values(#[serde(deserialize_with = "one_or_more")] Vec<String>);
    struct ListsVisitor;
    impl<'de> Visitor<'de> for ListsVisitor {
        type Value = BTreeMap<String, Values>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of variables and their values")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            BTreeMap::deserialize(MapAccessDeserializer::new(map))
        }
    }
    let lists = deserializer.deserialize_map(ListsVisitor)?;
    Ok(lists.into_iter().map(|(name, values)| (name, values.0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regatta_model::{GpuVendor, NicKind, SmtPolicy};

    fn error(text: &str) -> String {
        profiles("my.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn all_keys_are_parsed() {
        let text = r#"
            name = "mine"
            title = "My cluster"
            extends = "slingshot"
            without = ["NCCL_NET"]
            [match]
            cluster = ["mine"]
            domain = ["*.mine.org"]
            env = { HOST_KIND = "a", OTHER = ["b", "c"] }
            hardware = { cpu = "EPYC", gpu = "mi250x", vendor = "amd", gpus = 8, nic = "slingshot" }
            [place]
            reserve = "0,52"
            smt = "one"
            [fabric]
            interfaces = "hsn"
            host_suffix = "i"
            [node_local]
            dirs = ["/tmp"]
        "#;
        let p = profile("my.toml", text).unwrap();
        assert_eq!((p.title.as_str(), p.extends.as_deref()), ("My cluster", Some("slingshot")));
        assert_eq!(p.matches.env["HOST_KIND"], ["a"]);
        assert_eq!(p.matches.env["OTHER"], ["b", "c"]);
        assert_eq!(p.matches.hardware.vendor, Some(GpuVendor::Amd));
        assert_eq!(p.matches.hardware.nic, Some(NicKind::Slingshot));
        assert_eq!(p.place.reserve, Some(ReservedCores::Cpus("0,52".parse().unwrap())));
        assert_eq!(p.place.smt, Some(SmtPolicy::One));
        assert_eq!(p.fabric.host_suffix, ["i"]);
    }

    #[test]
    fn unknown_key_error_has_line_and_closest_key() {
        let cases = [
            (
                "name = 'a'\n\n[[set]]\nvariable = 'A'\nvlaue = '1'\nwhy = 'So.'\n",
                "5: unknown key \"vlaue\"; did you mean value?",
            ),
            (
                "name = 'a'\n[match]\nclusters = ['b']\n",
                "3: unknown key \"clusters\"; did you mean cluster?",
            ),
            (
                "name = 'a'\n[match]\nhardware = { colour = 1 }\n",
                "3: unknown key \"colour\"; known: cpu, host_cpu, gpu, vendor, gpus, nic",
            ),
            (
                "[[profile]]\nname = 'a'\n[[profile.set]]\nvariable = 'A'\nvalue = 1\nwhy = 'So.'\nwhen = { rcom = '6' }\n",
                "7: unknown key \"rcom\"; did you mean rocm?",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(error(text), format!("my.toml:{message}"));
        }
    }

    #[test]
    fn errors_have_a_line() {
        let starts = |text: &str, start: &str| {
            let error = error(text);
            assert!(error.starts_with(&format!("my.toml:{start}")), "{error}");
        };
        starts("name = 'a'\nextends = 3\n", "2: invalid type: integer `3`");
        starts("name = 'two words'\n", "1: a profile name is a single word");
        starts("title = 'a'\n", "1: missing field `name`");
        starts("name = 'a'\n[place]\nreserve = 'x'\n", "3: reserve must be");
        starts("name = 'a'\nname = 'b'\n", "2: duplicate key");
        starts("name = [\n", "");
        let rule = |body: &str| format!("name = 'a'\n\n[[set]]\nvariable = 'A'\n{body}");
        starts(&rule("why = 'So.'\n"), "3: A needs either value or unset = true");
        starts(&rule("value = '1'\nunset = true\nwhy = 'So.'\n"), "3: A needs either");
        starts(&rule("value = 1\nwhy = ' '\n"), "3: A needs a reason");
        let when = rule("value = 1\nwhy = 'So.'\nwhen = { nodes = 'many' }\n");
        starts(&when, "7: \"many\" is not a version constraint");
        let text = "name = 'a'\n[[set]]\nvariable = 'A=B'\nvalue = 1\nwhy = 'So.'\n";
        starts(text, "2: \"A=B\" is not a valid environment variable name");
    }

    #[test]
    fn duplicate_names_are_rejected() {
        let text = "[[profile]]\nname = \"a\"\n[[profile]]\nname = \"a\"\n";
        assert_eq!(error(text), "my.toml: duplicate profile \"a\"; remove or rename one");
    }

    proptest! {
        #[test]
        fn random_text_never_panics(text in "\\PC{0,200}") {
            let _ = profiles("my.toml", &text);
        }

        #[test]
        fn random_toml_never_panics(
            lines in proptest::collection::vec(
                prop_oneof![
                    "(name|title|extends|without|set|value|why|when|match|profile) = \\PC{0,20}",
                    "\\[{1,2}(match|place|fabric|set|profile|profile.set)\\]{1,2}",
                    "(variable|value|why|reserve|smt|cluster|env) = (\"\\PC{0,9}\"|\\[\\]|\\{\\}|1|true)",
                    Just("name = \"a\"".to_owned()),
                ],
                0..12,
            )
        ) {
            if let Err(error) = profiles("my.toml", &lines.join("\n")) {
                prop_assert!(error.to_string().starts_with("my.toml"), "{}", error);
            }
        }
    }
}
