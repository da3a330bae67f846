use super::{positive, seconds};

const HEADING: &str = "Limits on connections";

/// What clients may hold of each public port. The port between nodes has the
/// same time limits, and places for its ranks and 64 more.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConnectionArgs {
    /// Connections served at once on each public port [default: 4096]. When
    /// all are taken, the one that waits longest without a request gives its
    /// place away; when all work, a new one is refused, but for health checks.
    #[arg(long, env = "LOCKSTEP_MAX_CONNECTIONS", value_name = "COUNT", value_parser = positive,
          help_heading = HEADING)]
    pub max_connections: Option<usize>,
    /// Connections from one address, for IPv6 from one /64 [default: three
    /// quarters of --max-connections]. Give as many as there where all clients
    /// come through one gateway.
    #[arg(long, env = "LOCKSTEP_MAX_CONNECTIONS_PER_PEER", value_name = "COUNT",
          value_parser = positive, help_heading = HEADING)]
    pub max_connections_per_peer: Option<usize>,
    /// Requests at once on one HTTP/2 connection [default: 128, or
    /// --max-running-requests if that is more].
    #[arg(long, env = "LOCKSTEP_MAX_CONCURRENT_STREAMS", value_name = "COUNT",
          value_parser = positive, help_heading = HEADING)]
    pub max_concurrent_streams: Option<usize>,
    /// From a connection's begin to its first bytes, for HTTP/2 its whole
    /// preface, in seconds [default: 10].
    #[arg(long, env = "LOCKSTEP_FIRST_BYTE_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub first_byte_timeout: Option<u64>,
    /// From the first byte of a request to the end of its headers, in seconds
    /// [default: 30].
    #[arg(long, env = "LOCKSTEP_REQUEST_HEAD_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub request_head_timeout: Option<u64>,
    /// How long a request's body may be waited for in all, in seconds
    /// [default: 300].
    #[arg(long, env = "LOCKSTEP_REQUEST_BODY_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub request_body_timeout: Option<u64>,
    /// Bytes per second that a request's body has to bring, once ten seconds
    /// have passed; 0 for any rate [default: 4096].
    #[arg(long, env = "LOCKSTEP_MIN_BODY_RATE", value_name = "BYTES", help_heading = HEADING)]
    pub min_body_rate: Option<u64>,
    /// How long a client may take nothing of its answer, in seconds
    /// [default: 120]. Then the answer is dropped, and with the last one its
    /// connection.
    #[arg(long, env = "LOCKSTEP_SEND_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub send_timeout: Option<u64>,
    /// A connection without a request stays open for so long, in seconds
    /// [default: 620]. It has to be more than what proxies before the server
    /// keep theirs for.
    #[arg(long, env = "LOCKSTEP_KEEP_ALIVE_TIMEOUT", value_name = "SECONDS",
          value_parser = seconds, help_heading = HEADING)]
    pub keep_alive_timeout: Option<u64>,
}
