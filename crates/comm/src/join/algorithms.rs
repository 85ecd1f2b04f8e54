//! The table of algorithms: rank 0 has one, and tells it to all who join. So ranks can never run
//! programs that do not fit together, whatever files their nodes have.

use regatta_model::document::{from_json, to_json_line};

use super::{Settings, failed};
use crate::CommError;
use crate::schedule::choose::Table;

/// The table that this rank would have all use.
pub(super) fn wanted(settings: &Settings) -> Result<Table, CommError> {
    let Some(file) = settings.tuning.as_ref().filter(|_| !settings.deterministic) else {
        return Ok(Table::usual());
    };
    let wrong = |why: String| {
        let what = format!("REGATTA_TUNING {}: {why}", file.display());
        failed(what, "measure anew, or unset it")
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    from_json(&text).map_err(|error| wrong(error.to_string()))
}

/// As it is told.
pub(super) fn told(table: &Table) -> Result<String, CommError> {
    to_json_line(table).map_err(|error| CommError::System {
        what: "the table of algorithms".to_owned(),
        why: error.to_string(),
    })
}

/// What rank 0 told.
pub(super) fn heard(text: &str) -> Result<Table, CommError> {
    let wrong = |error| failed(format!("rank 0's table: {error}"), "use one version");
    from_json(text).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_wire::secret::Secret;

    #[test]
    fn a_file_is_read_unless_results_must_stay_the_same() {
        let file = std::env::temp_dir().join(format!("regatta-tuning-{}", std::process::id()));
        let other = Table { rows: Table::usual().rows[..1].to_vec() };
        std::fs::write(&file, told(&other).unwrap()).unwrap();
        let secret = Secret::generate().unwrap();
        let settings = |deterministic| Settings {
            tuning: Some(file.clone()),
            deterministic,
            ..Settings::new(0, 1, "here", 1, secret.clone())
        };
        assert_eq!(wanted(&settings(false)).unwrap(), other);
        assert_eq!(wanted(&settings(true)).unwrap(), Table::usual());
        std::fs::write(&file, "{}").unwrap();
        let error = wanted(&settings(false)).unwrap_err().to_string();
        assert!(error.contains("REGATTA_TUNING") && error.contains("measure anew"), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert!(wanted(&settings(false)).is_err());
        assert_eq!(heard(&told(&other).unwrap()).unwrap(), other);
    }
}
