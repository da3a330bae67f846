//! Jinja2's filters.

mod attributes;
mod json;
mod lists;
mod markup;
mod numbers;
mod sorting;
mod texts;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::args::Args;

/// A filter: takes its value and its arguments.
type Filter = fn(&mut State<'_, '_>, &Value, Args) -> Result<Value, Error>;

/// All filters except `tojson`, which transformers replaces, and the refused ones.
const FILTERS: &[(&str, Filter)] = &[
    ("abs", numbers::abs),
    ("attr", attributes::attr),
    ("batch", lists::batch),
    ("capitalize", texts::capitalize),
    ("center", texts::center),
    ("count", lists::length),
    ("d", texts::default),
    ("default", texts::default),
    ("dictsort", sorting::dictsort),
    ("e", markup::escape),
    ("escape", markup::escape),
    ("first", lists::first),
    ("float", numbers::float),
    ("forceescape", markup::forceescape),
    ("format", texts::format),
    ("groupby", sorting::groupby),
    ("indent", texts::indent),
    ("int", numbers::int),
    ("items", lists::items),
    ("join", lists::join),
    ("last", lists::last),
    ("length", lists::length),
    ("list", lists::list),
    ("lower", texts::lower),
    ("map", attributes::map),
    ("max", sorting::max),
    ("min", sorting::min),
    ("reject", attributes::reject),
    ("rejectattr", attributes::rejectattr),
    ("replace", texts::replace),
    ("reverse", lists::reverse),
    ("round", numbers::round),
    ("safe", markup::safe),
    ("select", attributes::select),
    ("selectattr", attributes::selectattr),
    ("slice", lists::slice),
    ("sort", sorting::sort),
    ("string", texts::string),
    ("sum", lists::sum),
    ("title", texts::title),
    ("trim", texts::trim),
    ("truncate", texts::truncate),
    ("unique", sorting::unique),
    ("upper", texts::upper),
    ("wordcount", texts::wordcount),
];

/// Filters of Jinja2 that chat templates cannot use here. The result of `random` cannot be
/// compared with Jinja2's. The others are for web pages; no template of a model has been seen to
/// use them.
pub(in crate::chat) const REFUSED: &[&str] = &[
    "filesizeformat",
    "pprint",
    "random",
    "striptags",
    "urlencode",
    "urlize",
    "wordwrap",
    "xmlattr",
];

/// Returns true if Jinja2 has a filter of this name in transformers' environment.
pub(in crate::chat) fn exists(name: &str) -> bool {
    let mut own = FILTERS.iter().map(|(name, _)| *name);
    own.any(|own| own == name) || name == "tojson" || REFUSED.contains(&name)
}

/// Adds all filters to an environment. `json_depth` is the maximum nesting for `tojson`.
pub(in crate::chat) fn add_to(environment: &mut Environment<'static>, json_depth: usize) {
    for &(name, filter) in FILTERS {
        add(environment, name, filter);
    }
    add(environment, "tojson", json::tojson(json_depth));
}

fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    filter: impl Fn(&mut State<'_, '_>, &Value, Args) -> Result<Value, Error> + Send + Sync + 'static,
) {
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let (value, args) = Args::of_filter(args)?;
            filter(state, &value, args)
        },
    );
}
