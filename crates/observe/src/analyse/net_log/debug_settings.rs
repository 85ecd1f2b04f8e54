//! Variables that make NCCL log which network it uses.

/// Subsystems that log network, plug-in, channels and variables.
const SUBSYSTEMS: &str = "INIT,BOOTSTRAP,NET,ENV";

/// Variables that make NCCL log what is checked.
#[derive(Debug, PartialEq, Eq)]
pub struct DebugSettings {
    /// Variables to set, besides the file of each rank.
    pub set: Vec<(&'static str, &'static str)>,
    /// The user's own settings, which are kept.
    pub notes: Vec<String>,
    /// Why nothing can be checked.
    pub obstacle: Option<String>,
}

impl DebugSettings {
    /// Decides on the variables, given the user's own.
    pub fn new<'a>(user: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut settings = Self { set: Vec::new(), notes: Vec::new(), obstacle: None };
        match user("NCCL_DEBUG") {
            None => settings.set.push(("NCCL_DEBUG", "INFO")),
            Some(level) if ["INFO", "TRACE"].iter().any(|l| l.eq_ignore_ascii_case(level)) => {
                settings.notes.push(format!("NCCL_DEBUG={level} of the environment is kept"));
            }
            Some(level) => {
                let text =
                    format!("NCCL_DEBUG={level} logs too little: unset it, or set it to INFO");
                settings.obstacle = Some(text);
            }
        }
        match user("NCCL_DEBUG_SUBSYS") {
            None => settings.set.push(("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)),
            Some(value) => {
                // `^` excludes the subsystems that follow.
                let list = value.to_ascii_uppercase();
                let is_named =
                    |name: &str| list.trim_start_matches('^').split(',').any(|s| s == name);
                let missing = (is_named("INIT") || is_named("ALL")) == list.starts_with('^');
                let why = if missing { ", and logs no channels: add INIT" } else { "" };
                settings
                    .notes
                    .push(format!("NCCL_DEBUG_SUBSYS={value} of the environment is kept{why}"));
            }
        }
        if let Some(file) = user("NCCL_DEBUG_FILE") {
            settings.obstacle = Some(format!(
                "NCCL_DEBUG_FILE={file} is set, so the logs are there: unset it, or read them with \
             `regatta net-log`"
            ));
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(user: &[(&str, &'static str)]) -> DebugSettings {
        DebugSettings::new(|name| user.iter().find(|(n, _)| *n == name).map(|(_, value)| *value))
    }

    #[test]
    fn own_settings_are_kept_and_named() {
        let default = settings(&[]);
        assert_eq!(default.set, [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)]);
        assert!(default.notes.is_empty() && default.obstacle.is_none());

        let own = settings(&[("NCCL_DEBUG", "trace"), ("NCCL_DEBUG_SUBSYS", "NET")]);
        assert!(own.set.is_empty() && own.obstacle.is_none());
        assert!(
            own.notes[1].contains("NCCL_DEBUG_SUBSYS=NET of the environment is kept, and logs no")
        );
        for complete in ["INIT,NET", "ALL", "^COLL", "all"] {
            let notes = settings(&[("NCCL_DEBUG_SUBSYS", complete)]).notes;
            assert!(notes[0].ends_with("is kept"), "{notes:?}");
        }
        let notes = settings(&[("NCCL_DEBUG_SUBSYS", "^INIT")]).notes;
        assert!(notes[0].ends_with("add INIT"), "{notes:?}");
    }

    #[test]
    fn settings_that_hide_the_log_are_obstacles() {
        let obstacle = |name, value| settings(&[(name, value)]).obstacle.unwrap();
        assert!(obstacle("NCCL_DEBUG", "WARN").contains("NCCL_DEBUG=WARN logs too little"));
        assert!(obstacle("NCCL_DEBUG_FILE", "/tmp/x").contains("NCCL_DEBUG_FILE=/tmp/x is set"));
    }
}
