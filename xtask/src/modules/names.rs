//! The modules of a crate, and the modules that each module names.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::Tree;

/// Path from the crate's root. The root itself has an empty path.
pub(super) type Path = Vec<String>;

/// Limit of imports followed in a chain, far more than real code has.
const MAX_HOPS: usize = 16;

/// The modules of a crate without its tests, which may use everything.
pub(super) struct Crate {
    modules: BTreeMap<Path, Module>,
}

/// Imports and paths of one module.
#[derive(Default)]
struct Module {
    /// The path of each imported name, as written.
    imports: BTreeMap<String, Path>,
    /// All paths in the module that may lead to other modules, as written.
    named: BTreeSet<Path>,
}

impl Crate {
    /// Reads the sources of the library in `folder`, or of the program if there is no
    /// library.
    pub(super) fn read(tree: &Tree, folder: &str) -> Self {
        let sources = format!("{folder}/src/");
        let root = ["lib.rs", "main.rs"].into_iter();
        let root = root
            .map(|name| format!("{sources}{name}"))
            .find(|path| tree.has(path));
        let mut reader = Reader::default();
        for (path, text) in tree.files() {
            let Some(inner) = path
                .strip_prefix(&sources)
                .and_then(|p| p.strip_suffix(".rs"))
            else {
                continue;
            };
            // The check `rust` reports files that do not parse.
            let Ok(file) = syn::parse_file(text) else {
                continue;
            };
            if root.as_deref() == Some(path) {
                reader.file(Path::new(), &file);
            } else if inner != "main" && !inner.starts_with("bin/") {
                reader.file(inner.split('/').map(str::to_owned).collect(), &file);
            }
        }
        let Reader {
            mut modules, tests, ..
        } = reader;
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Self { modules }
    }

    /// Returns all pairs of modules whose first module names the second, or an item of
    /// the second.
    pub(super) fn references(&self) -> BTreeSet<(Path, Path)> {
        let of = |(from, module): (&Path, &Module)| -> Vec<(Path, Path)> {
            let targets = module
                .named
                .iter()
                .filter_map(|path| self.resolve(from, path, 0));
            targets.map(|to| (from.clone(), to)).collect()
        };
        self.modules.iter().flat_map(of).collect()
    }

    /// Returns the module that holds the item at `path`, written in `from`. Re-exports
    /// are followed to the original module. `None` means another crate.
    fn resolve(&self, from: &Path, path: &[String], hops: usize) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Path::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            _ => self.step(from, first, hops)?,
        };
        Some(rest.iter().fold(start, |at, name| match name.as_str() {
            "super" => at[..at.len().saturating_sub(1)].to_vec(),
            _ => self.step(&at, name, hops).unwrap_or(at),
        }))
    }

    /// Returns the module that `name` in `module` leads to; `None` for an item of the
    /// module itself or of another crate.
    fn step(&self, module: &Path, name: &str, hops: usize) -> Option<Path> {
        let mut part = module.clone();
        part.push(name.to_owned());
        if self.modules.contains_key(&part) {
            return Some(part);
        }
        let import = self.modules.get(module)?.imports.get(name)?;
        (hops < MAX_HOPS).then(|| self.resolve(module, import, hops + 1))?
    }
}

/// Collects modules from syntax trees.
#[derive(Default)]
struct Reader {
    modules: BTreeMap<Path, Module>,
    /// Modules that exist in tests alone.
    tests: BTreeSet<Path>,
    /// The module at hand.
    at: Path,
}

impl Reader {
    fn file(&mut self, path: Path, file: &syn::File) {
        self.at = path;
        self.module().named.clear();
        self.visit_file(file);
    }

    fn module(&mut self) -> &mut Module {
        self.modules.entry(self.at.clone()).or_default()
    }

    /// Records every leaf of a `use` below `prefix`.
    fn import(&mut self, mut prefix: Path, tree: &syn::UseTree) {
        let (name, alias) = match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                return self.import(prefix, &path.tree);
            }
            syn::UseTree::Group(group) => {
                let parts = group.items.iter();
                return parts.for_each(|part| self.import(prefix.clone(), part));
            }
            syn::UseTree::Glob(_) => {
                self.module().named.insert(prefix);
                return;
            }
            syn::UseTree::Name(name) => (&name.ident, &name.ident),
            syn::UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        let mut alias = alias.to_string();
        if name != "self" {
            prefix.push(name.to_string());
        } else if alias == "self" {
            alias = prefix.last().cloned().unwrap_or_default();
        }
        let module = self.module();
        module.named.insert(prefix.clone());
        module.imports.insert(alias, prefix);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        } else if let syn::Item::Mod(module) = item {
            let mut path = self.at.clone();
            path.push(module.ident.to_string());
            self.tests.insert(path);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.at.push(item.ident.to_string());
        if item.content.is_some() {
            self.module();
        }
        visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(Path::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Path = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if matches!(names[0].as_str(), "crate" | "self" | "super") {
            self.module().named.insert(names);
        }
        visit::visit_path(self, path);
    }
}

/// Returns the attributes of an item of a kind that tests contain.
fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns true if one of the attributes is `#[cfg(test)]`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.parse_args::<syn::Ident>();
        attribute.path().is_ident("cfg") && condition.is_ok_and(|name| name == "test")
    })
}
