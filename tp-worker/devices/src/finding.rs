//! Findings of `lockstep doctor`.

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The part that was looked at.
    pub name: &'static str,
    /// The result.
    pub found: String,
    /// The problem and its remedy; `None` if all is well.
    pub problem: Option<String>,
}

impl Finding {
    /// Makes a finding without a problem.
    pub fn new(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            found: found.into(),
            problem: None,
        }
    }

    /// Adds a problem with its remedy if `wrong` is true.
    #[must_use]
    pub fn problem_if(mut self, wrong: bool, remedy: impl Into<String>) -> Self {
        if wrong {
            self.problem = Some(remedy.into());
        }
        self
    }
}
