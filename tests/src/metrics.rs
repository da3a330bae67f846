//! Parser of Prometheus' text format.

use std::collections::BTreeMap;

/// The series of a scrape: name with labels, without the model's label, and value.
#[derive(Debug, Clone, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses a scrape.
    ///
    /// # Panics
    /// On a line that is neither a comment nor a sample, or a series that occurs twice.
    pub fn parse(text: &str) -> Self {
        let mut series = BTreeMap::new();
        for line in text.lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line
                .rsplit_once(' ')
                .unwrap_or_else(|| panic!("no sample: {line:?}"));
            let name = without_model(name);
            let value = value
                .parse()
                .unwrap_or_else(|_| panic!("no number: {line:?}"));
            let twice = series.insert(name.clone(), value).is_some();
            assert!(!twice, "twice: {name}");
        }
        Self(series)
    }

    /// Returns the value of a series by its name with labels.
    ///
    /// # Panics
    /// Panics if there is no such series.
    pub fn value(&self, name: &str) -> f64 {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("no series {name} in {:?}", self.0.keys()))
    }

    /// Returns the sum of all series of a name, whatever their labels.
    pub fn sum(&self, name: &str) -> f64 {
        let labelled = format!("{name}{{");
        self.0
            .iter()
            .filter(|(series, _)| *series == name || series.starts_with(&labelled))
            .map(|(_, value)| value)
            .sum()
    }

    /// Returns the sum of all series of a name that have these labels, whatever their
    /// other labels.
    pub fn sum_with(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labelled = format!("{name}{{");
        let has = |series: &str| {
            labels
                .iter()
                .all(|(label, value)| series.contains(&format!("{label}=\"{value}\"")))
        };
        self.0
            .iter()
            .filter(|(series, _)| series.starts_with(&labelled) && has(series))
            .map(|(_, value)| value)
            .sum()
    }
}

/// Returns the name of a series without the model's label, which all series of a server
/// have.
fn without_model(name: &str) -> String {
    let Some((before, rest)) = name.split_once("model_name=\"") else {
        return name.to_owned();
    };
    let after = rest.split_once('"').map_or("", |(_, after)| after);
    let labels = format!("{before}{}", after.strip_prefix(',').unwrap_or(after));
    labels.strip_suffix("{}").unwrap_or(&labels).to_owned()
}
