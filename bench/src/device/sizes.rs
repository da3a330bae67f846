//! Sizes on the command line.

use std::fmt;
use std::str::FromStr;

/// A number of requests, and the number of cached tokens of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    pub requests: usize,
    pub tokens: usize,
}

impl FromStr for Requests {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
        let (requests, tokens) = text.split_once('x').unwrap_or((text, ""));
        match (number(requests), number(tokens)) {
            (Some(requests), Some(tokens)) => Ok(Self { requests, tokens }),
            _ => Err("give requests and the cached tokens of each: 64x1024".to_owned()),
        }
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.requests, self.tokens)
    }
}
