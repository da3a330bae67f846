//! Conversions between a message and the plain data that it mirrors.

/// Makes both conversions between the message `pb::Name` and the plain `Name` with the same
/// fields. With `try`, reading may fail. A word behind a field says how the field is converted:
///
/// | word | on the wire | plain |
/// |---|---|---|
/// | `each` | a list of messages | a list |
/// | `try_each` | a list of messages; reading one may fail | a list |
/// | `maybe` | an optional message | an `Option` |
/// | `filled` | optional; absent means the default | always there |
macro_rules! mirror {
    ($name:ident { $($field:ident $(: $how:ident)?),* $(,)? }) => {
        impl From<pb::$name> for $name {
            fn from(wire: pb::$name) -> Self {
                Self { $($field: mirror!(@read wire.$field $($how)?)),* }
            }
        }
        mirror!(@back $name { $($field $(: $how)?),* });
    };
    (try $name:ident { $($field:ident $(: $how:ident)?),* $(,)? }) => {
        impl TryFrom<pb::$name> for $name {
            type Error = WireError;
            fn try_from(wire: pb::$name) -> Result<Self, WireError> {
                Ok(Self { $($field: mirror!(@read wire.$field $($how)?)),* })
            }
        }
        mirror!(@back $name { $($field $(: $how)?),* });
    };
    (@back $name:ident { $($field:ident $(: $how:ident)?),* }) => {
        impl From<$name> for pb::$name {
            fn from(plain: $name) -> Self {
                Self { $($field: mirror!(@write plain.$field $($how)?)),* }
            }
        }
    };

    (@read $wire:ident.$field:ident) => { $wire.$field };
    (@read $wire:ident.$field:ident each) => { $wire.$field.into_iter().map(Into::into).collect() };
    (@read $wire:ident.$field:ident try_each) => {
        $wire.$field.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?
    };
    (@read $wire:ident.$field:ident maybe) => { $wire.$field.map(Into::into) };
    (@read $wire:ident.$field:ident filled) => {
        $wire.$field.map(Into::into).unwrap_or_default()
    };

    (@write $plain:ident.$field:ident) => { $plain.$field };
    (@write $plain:ident.$field:ident each) => {
        $plain.$field.into_iter().map(Into::into).collect()
    };
    (@write $plain:ident.$field:ident try_each) => { mirror!(@write $plain.$field each) };
    (@write $plain:ident.$field:ident maybe) => { $plain.$field.map(Into::into) };
    (@write $plain:ident.$field:ident filled) => { Some($plain.$field.into()) };
}

pub(crate) use mirror;
