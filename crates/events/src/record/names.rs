//! Names that are not built in.

use std::sync::OnceLock;

use crate::operation::Name;

/// A table of names that only grows. Reading it takes no lock.
#[derive(Debug)]
pub(super) struct NameTable([OnceLock<Box<str>>; Name::MAX_CUSTOM]);

impl Default for NameTable {
    fn default() -> Self {
        Self([const { OnceLock::new() }; Name::MAX_CUSTOM])
    }
}

impl NameTable {
    /// The code of a name. Names that no longer fit get the last code.
    pub(super) fn intern(&self, text: &str) -> Name {
        let (last, slots) = match self.0.split_last() {
            Some(parts) => parts,
            None => return Name::NONE,
        };
        for (index, slot) in slots.iter().enumerate() {
            if **slot.get_or_init(|| text.into()) == *text {
                return Name(Name::CUSTOM + index as u8);
            }
        }
        last.get_or_init(|| "other".into());
        Name(Name::CUSTOM + slots.len() as u8)
    }

    /// The names from an index on.
    pub(super) fn from(&self, index: usize) -> impl Iterator<Item = (Name, &str)> {
        let slots = self.0.iter().enumerate().skip(index);
        slots.map_while(|(index, slot)| Some((Name(Name::CUSTOM + index as u8), &**slot.get()?)))
    }
}
