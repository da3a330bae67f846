//! Figures as a table and as JSON.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use crate::machine;

/// Tells a person who waits for the report about the current measurement. Errors are
/// ignored, as a report needs no reader of its progress.
pub fn progress(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what} …");
}

/// Tells a person which device was chosen and why, of the notes of a configuration.
pub fn tell(notes: &[String]) {
    let device = |note: &&String| note.starts_with("--device ");
    for note in notes.iter().filter(device) {
        let _ = writeln!(std::io::stderr(), "Note: {note}.");
    }
}

/// A main table with notes above it, and perhaps more tables below.
pub struct Report {
    /// Description of the device that computed, if known.
    device: Option<String>,
    notes: Vec<(String, Value)>,
    main: Table,
    others: Vec<Table>,
}

/// A titled table whose cells keep their JSON values.
pub struct Table {
    title: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Value>>,
}

impl Report {
    /// A report with an empty main table.
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self {
            device: None,
            notes: Vec::new(),
            main: Table::new(title, columns),
            others: Vec::new(),
        }
    }

    /// Names the device that the ranks computed on, as the first of them describes it: in a
    /// line above the main table, and in JSON beside the host's processor.
    pub fn computed_on(&mut self, ranks: &[String]) {
        self.device = ranks.first().cloned();
        self.note("backend", self.device.clone());
    }

    /// Adds a line above the main table.
    pub fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.notes.push((name.to_owned(), value.into()));
    }

    /// Adds a row to the main table, one value per column.
    pub fn row(&mut self, cells: Vec<Value>) {
        self.main.row(cells);
    }

    /// Adds a table below the main one.
    pub fn add(&mut self, table: Table) {
        self.others.push(table);
    }

    /// Prints notes and tables; tables without rows are left out.
    ///
    /// # Errors
    /// Fails when stdout can't be written; a reader that left is no error.
    pub fn print(&self) -> anyhow::Result<()> {
        lockstep_process::print(&self.to_text()).context("printing the figures")
    }

    /// Notes and tables for people.
    fn to_text(&self) -> String {
        let mut text = format!("\n{}\n", self.main.title);
        for (name, value) in &self.notes {
            let _ = writeln!(text, "  {name}: {}", cell(value));
        }
        text += &self.main.to_text();
        for table in self.others.iter().filter(|table| !table.rows.is_empty()) {
            let _ = write!(text, "\n{}\n{}", table.title, table.to_text());
        }
        text
    }

    /// Writes everything as JSON.
    ///
    /// # Errors
    /// Fails when the file can't be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.to_json())?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }

    /// Notes and tables as Markdown; tables without rows are left out.
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.main.title);
        for (name, value) in &self.notes {
            text += &format!("- {name}: {}\n", cell(value));
        }
        text += "\n";
        text += &self.main.to_markdown();
        for table in self.others.iter().filter(|table| !table.rows.is_empty()) {
            text += &format!("\n## {}\n\n{}", table.title, table.to_markdown());
        }
        text
    }

    /// The main table as `rows`, the others under `tables` by their titles.
    pub fn to_json(&self) -> Value {
        let mut machine = machine::describe();
        if let Some(device) = &self.device {
            machine["device"] = json!(device);
        }
        let mut whole = json!({
            "title": self.main.title,
            "command": std::env::args().skip(1).collect::<Vec<_>>(),
            "machine": machine,
            "notes": Map::from_iter(self.notes.iter().cloned()),
            "rows": self.main.to_json(),
        });
        if !self.others.is_empty() {
            let table = |table: &Table| (table.title.clone(), table.to_json());
            whole["tables"] = Value::Object(self.others.iter().map(table).collect());
        }
        whole
    }
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, one value per column.
    pub fn row(&mut self, cells: Vec<Value>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// All rows as JSON objects.
    pub fn rows(&self) -> Vec<Value> {
        let rows = self.rows.iter();
        rows.map(|row| object(&self.columns, row)).collect()
    }

    /// The last row as a JSON object.
    pub fn last(&self) -> Value {
        let row = self.rows.last().map(Vec::as_slice).unwrap_or_default();
        object(&self.columns, row)
    }

    fn to_text(&self) -> String {
        let texts: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(cell).collect())
            .collect();
        let width = |column: usize| {
            let cells = texts.iter().map(|row| row[column].chars().count());
            let name = self.columns[column].chars().count();
            cells.chain([name]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> = cells
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:>width$}"))
                .collect();
            let _ = writeln!(text, "  {}", padded.join("  "));
        };
        line(&mut self.columns.iter().copied());
        for row in &texts {
            line(&mut row.iter().map(String::as_str));
        }
        text
    }

    fn to_markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.columns.iter().map(|name| (*name).to_owned()).collect());
        text += &line(vec!["---".to_owned(); self.columns.len()]);
        for row in &self.rows {
            text += &line(row.iter().map(cell).collect());
        }
        text
    }

    /// An object per row.
    fn to_json(&self) -> Value {
        Value::Array(self.rows())
    }
}

/// A row as a JSON object.
pub fn object(columns: &[&str], row: &[Value]) -> Value {
    let names = columns.iter().map(|name| (*name).to_owned());
    Value::Object(Map::from_iter(names.zip(row.iter().cloned())))
}

/// A value for people: numbers have a sensible number of digits.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            let digits = match number.abs() {
                size if size >= 1000.0 => 0,
                size if size >= 100.0 => 1,
                size if size >= 1.0 => 2,
                _ => 3,
            };
            format!("{number:.digits$}")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_read_well() {
        assert_eq!(cell(&json!(1234.56)), "1235");
        assert_eq!(cell(&json!(12.345)), "12.35");
        assert_eq!(cell(&json!(0.01234)), "0.012");
        assert_eq!(cell(&json!(7)), "7");
        assert_eq!(cell(&json!("a")), "a");
        assert_eq!(cell(&Value::Null), "-");
    }

    #[test]
    fn json_holds_what_the_table_shows() -> anyhow::Result<()> {
        let mut report = Report::new("t", &["a", "b"]);
        report.note("n", 3);
        report.row(vec![json!(1), json!(2.5)]);
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("r.json");
        report.write(&path)?;
        let read: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        assert_eq!(read["rows"][0], json!({"a": 1, "b": 2.5}));
        assert_eq!(read["notes"]["n"], 3);
        assert_eq!(read.get("tables"), None);
        Ok(())
    }

    #[test]
    fn what_computed_is_named_beside_the_host() {
        let mut report = Report::new("t", &["a"]);
        let host = report.to_json()["machine"].clone();
        assert_eq!(host.get("device"), None);
        report.computed_on(&["cuda 0 a GPU".to_owned(), "cuda 1".to_owned()]);
        let json = report.to_json();
        assert_eq!(json["machine"]["device"], "cuda 0 a GPU");
        assert_eq!(json["machine"]["processor"], host["processor"]);
        assert_eq!(json["notes"]["backend"], "cuda 0 a GPU");
    }

    #[test]
    fn more_tables_stand_below_the_main_one() {
        let mut report = Report::new("t", &["a"]);
        let mut table = Table::new("more", &["b", "c"]);
        table.row(vec![json!(1), Value::Null]);
        report.add(table);
        let json = report.to_json();
        assert_eq!(json["rows"], json!([]));
        assert_eq!(json["tables"]["more"], json!([{"b": 1, "c": null}]));
    }

    #[test]
    fn markdown_has_the_same_tables() {
        let mut report = Report::new("t", &["a"]);
        report.note("n", 3);
        report.row(vec![json!("x")]);
        let mut table = Table::new("more", &["b", "c"]);
        table.row(vec![json!(1.5), Value::Null]);
        report.add(table);
        report.add(Table::new("empty", &["d"]));
        expect_test::expect![[r"
            # t

            - n: 3

            | a |
            | --- |
            | x |

            ## more

            | b | c |
            | --- | --- |
            | 1.50 | - |
        "]]
        .assert_eq(&report.to_markdown());
    }
}
