//! Limits set explicitly on every gRPC connection; tonic's defaults are either
//! absent (streams) or too small for long prompts (4 MiB messages).

/// Largest message accepted on internal streams, bytes.
pub const INTERNAL_MESSAGE_BYTES: usize = 64 << 20;
/// Largest message accepted on public gRPC ports, bytes.
pub const PUBLIC_MESSAGE_BYTES: usize = 16 << 20;
/// Most texts, lists and messages in one message that is accepted on public gRPC ports.
pub const PUBLIC_MESSAGE_PARTS: usize = 1 << 16;
/// Largest message sent on public gRPC ports, bytes: log-probabilities of a long prompt with
/// all alternatives. A client sets its own limit for messages that it accepts.
pub const PUBLIC_ANSWER_BYTES: usize = 256 << 20;
/// Largest message accepted by services without content of their own (health and reflection),
/// bytes.
pub const SMALL_MESSAGE_BYTES: usize = 4 << 10;
/// Most open HTTP/2 streams on one internal connection.
pub const INTERNAL_CONCURRENT_STREAMS: u32 = 64;
