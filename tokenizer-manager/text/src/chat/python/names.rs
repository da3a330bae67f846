//! Names of the methods that values have.

use minijinja::Value;

use super::value::Py;

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

const DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const LIST: &[&str] = &["copy", "count", "index"];
const TUPLE: &[&str] = &["count", "index"];
const INT: &[&str] = &[
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "to_bytes",
];
const FLOAT: &[&str] = &["as_integer_ratio", "conjugate", "hex", "is_integer"];

/// Methods that change a dictionary or a list; the sandbox hides them.
const DICT_CHANGING: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST_CHANGING: &[&str] = &[
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];

/// Returns the name of a method if values of this type have it.
pub(in crate::chat) fn readable(value: &Value, name: &str) -> Option<&'static str> {
    let own = match Py::of(value) {
        Py::Str(_) => STR,
        Py::Dict => DICT,
        Py::List => LIST,
        Py::Tuple | Py::Range(_) => TUPLE,
        Py::Int(_) | Py::Bool(_) => INT,
        Py::Float(_) => FLOAT,
        _ => return None,
    };
    own.iter().copied().find(|known| *known == name)
}

/// Returns true if the method would change the value.
pub(in crate::chat) fn changes(value: &Value, name: &str) -> bool {
    match Py::of(value) {
        Py::Dict => DICT_CHANGING.contains(&name),
        Py::List => LIST_CHANGING.contains(&name),
        _ => false,
    }
}
