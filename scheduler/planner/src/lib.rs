//! The pure scheduling library: (state, events) to plan.
