//! The algorithm table. Rank 0 loads it and sends it to all ranks, so all run the same algorithms
//! even if their nodes have different files.

use regatta_model::document::from_json;

use super::BootstrapConfig;
use crate::schedule::algorithm_table::AlgorithmTable;
use crate::{CommError, Result};

/// The table of `REGATTA_TUNING`, or the default one.
pub(super) fn load(config: &BootstrapConfig) -> Result<AlgorithmTable> {
    let Some(file) = config.tuning.as_ref().filter(|_| !config.deterministic) else {
        return Ok(AlgorithmTable::default());
    };
    let invalid = |why: String| {
        let what = format!("cannot load REGATTA_TUNING {}: {why}", file.display());
        let hint = "create it with `regatta bench all-reduce --tune FILE`, or unset REGATTA_TUNING";
        CommError::bootstrap(what, hint)
    };
    let text = std::fs::read_to_string(file).map_err(|error| invalid(error.to_string()))?;
    from_json(&text).map_err(|error| invalid(error.to_string()))
}

/// The table received from rank 0.
pub(super) fn decode(text: &str) -> Result<AlgorithmTable> {
    from_json(text).map_err(|error| {
        let what = format!("invalid algorithm table from rank 0: {error}");
        CommError::bootstrap(what, "run the same version of Regatta on all nodes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::document::to_json_line;
    use regatta_wire::secret::Secret;

    #[test]
    fn the_tuning_file_is_loaded_unless_the_job_is_deterministic() {
        let file = std::env::temp_dir().join(format!("regatta-tuning-{}", std::process::id()));
        let tuned = AlgorithmTable { rows: AlgorithmTable::default().rows[..1].to_vec() };
        std::fs::write(&file, to_json_line(&tuned).unwrap()).unwrap();
        let secret = Secret::generate().unwrap();
        let config = |deterministic| BootstrapConfig {
            tuning: Some(file.clone()),
            deterministic,
            ..BootstrapConfig::new(0, 1, "localhost", 1, secret.clone())
        };
        assert_eq!(load(&config(false)).unwrap(), tuned);
        assert_eq!(load(&config(true)).unwrap(), AlgorithmTable::default());
        std::fs::write(&file, "{}").unwrap();
        let error = load(&config(false)).unwrap_err().to_string();
        let hint = "`regatta bench all-reduce --tune FILE`, or unset REGATTA_TUNING";
        assert!(error.ends_with(hint), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert!(load(&config(false)).is_err());
        assert_eq!(decode(&to_json_line(&tuned).unwrap()).unwrap(), tuned);
    }
}
