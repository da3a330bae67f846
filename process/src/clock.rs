//! Check of the system's clock: whether it is kept in step with others.

/// Returns true if the kernel knows the clock to be in step, from a program such as chrony that
/// sets it. `None` if the kernel may not be asked.
#[expect(unsafe_code, reason = "the kernel's call has no safe interface")]
pub fn in_step() -> Option<bool> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is this function's own; with no mode nothing is changed.
    let status = unsafe { libc::adjtimex(&raw mut state) };
    match status {
        -1 => None,
        libc::TIME_ERROR => Some(false),
        _ => Some(true),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_can_be_asked() {
        // Any answer is fine: containers may forbid the question.
        let (first, second) = (super::in_step(), super::in_step());
        assert_eq!(first.is_some(), second.is_some());
    }
}
