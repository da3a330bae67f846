//! What `lockstep doctor` found.

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub found: String,
    /// What is wrong with it and what to do; `None` = all is well.
    pub problem: Option<String>,
}

impl Finding {
    /// Something that is well.
    pub fn new(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            found: found.into(),
            problem: None,
        }
    }

    /// The same, with a remedy where something is wrong.
    #[must_use]
    pub fn problem_if(mut self, wrong: bool, remedy: impl Into<String>) -> Self {
        if wrong {
            self.problem = Some(remedy.into());
        }
        self
    }
}
