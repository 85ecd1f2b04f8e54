//! JSON has no word for what is not a number. A loss may well be none, and whoever hears of it must
//! hear that: it is written as null, and read as not a number.

use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
    match number.is_finite() {
        true => to.serialize_f64(*number),
        false => to.serialize_none(),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}
