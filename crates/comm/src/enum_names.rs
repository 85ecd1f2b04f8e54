//! Enums whose values have names.

/// Implements `ALL`, `name` and `Display`. Variants after the semicolon are not part of `ALL`.
#[macro_export]
macro_rules! enum_names {
    ($type:ident, $doc:literal, $($variant:ident $name:literal),+ $(; $($other:ident $other_name:literal),+)?) => {
        impl $type {
            #[doc = $doc]
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                    $($(Self::$other => $other_name,)+)?
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use enum_names;
