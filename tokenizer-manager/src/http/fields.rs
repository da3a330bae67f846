//! Fields of requests, declared once.

/// Declares a request type and the list of its fields.
macro_rules! with_fields {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $name {
            /// The supported fields, with their types.
            pub const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), stringify!($type)),)*];
        }
    };
}

pub(in crate::http) use with_fields;
