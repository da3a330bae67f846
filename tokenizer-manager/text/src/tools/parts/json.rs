//! End of a JSON value in a growing text.

/// Scanner of one JSON value, which begins with the first character. It finds the value's end by
/// brackets and quotes, and does not check what is inside.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct JsonScanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

/// Place of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Scanned {
    /// The character is a part of the value, and more follow.
    Inside,
    /// The character is the value's last one.
    Last,
    /// The value ended before this character.
    Behind,
    /// No value can begin with this character.
    Wrong,
}

impl JsonScanner {
    /// True if the value has begun.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// True inside a string, where marks are text.
    pub fn in_string(&self) -> bool {
        self.in_string
    }

    /// Reads a character.
    pub fn read(&mut self, c: char) -> Scanned {
        if !self.begun {
            return self.begin(c);
        }
        if self.in_string {
            let closes = c == '"' && !self.escaped;
            self.escaped = c == '\\' && !self.escaped;
            self.in_string = !closes;
            return match closes && self.depth == 0 {
                true => Scanned::Last,
                false => Scanned::Inside,
            };
        }
        if self.depth == 0 {
            let goes_on = c.is_ascii_alphanumeric() || "+-.".contains(c);
            return match goes_on {
                true => Scanned::Inside,
                false => Scanned::Behind,
            };
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth -= 1,
            _ => {}
        }
        match self.depth {
            0 => Scanned::Last,
            _ => Scanned::Inside,
        }
    }

    fn begin(&mut self, c: char) -> Scanned {
        match c {
            '{' | '[' => self.depth = 1,
            '"' => self.in_string = true,
            '-' | '0'..='9' | 't' | 'f' | 'n' => {}
            _ => return Scanned::Wrong,
        }
        self.begun = true;
        Scanned::Inside
    }
}
