//! Serialises a float that may not be finite: JSON has no NaN or infinity, so they are written as null, and
//! null is read as NaN.

use serde::{Deserialize, Deserializer, Serializer};

/// For `serde(with)`.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_finite() {
        true => serializer.serialize_f64(*value),
        false => serializer.serialize_none(),
    }
}

/// For `serde(with)`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
