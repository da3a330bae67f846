use lockstep_types::ConnectionLimits;

use super::ConfigError;
use crate::args::ConnectionArgs;

/// Default number of connections on each port.
const CONNECTIONS: usize = 4096;
/// Requests on one HTTP/2 connection. A gateway with a single connection may fill the batch
/// with it.
const STREAMS: usize = 128;
/// Seconds that an idle connection is kept. Longer than load balancers keep theirs (600 s at
/// Google's), so that they never send a request on a connection that is being closed here.
const KEEP_ALIVE_S: u64 = 620;

pub(super) fn resolve(
    args: &ConnectionArgs,
    max_running_requests: usize,
) -> Result<ConnectionLimits, ConfigError> {
    let per_port = args.max_connections.unwrap_or(CONNECTIONS);
    let three_quarters = per_port - per_port / 4;
    let per_peer = args.max_connections_per_peer.unwrap_or(three_quarters);
    if per_peer > per_port {
        return Err(ConfigError::conflict(
            format!("--max-connections-per-peer {per_peer}"),
            format!("--max-connections {per_port}"),
            "one address cannot have more than all",
            "Give --max-connections-per-peer that or less",
        ));
    }
    let streams = STREAMS.max(max_running_requests);
    let streams = args.max_concurrent_streams.unwrap_or(streams);
    Ok(ConnectionLimits {
        per_port,
        per_peer,
        streams: u32::try_from(streams).unwrap_or(u32::MAX),
        first_byte_s: args.first_byte_timeout.unwrap_or(10),
        head_s: args.request_head_timeout.unwrap_or(30),
        body_s: args.request_body_timeout.unwrap_or(300),
        body_rate: args.min_body_rate.unwrap_or(4096),
        send_s: args.send_timeout.unwrap_or(120),
        keep_alive_s: args.keep_alive_timeout.unwrap_or(KEEP_ALIVE_S),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_follow_what_is_given() {
        let of = |args: &ConnectionArgs, running| resolve(args, running).expect("good");
        let mut args = ConnectionArgs::default();
        let limits = of(&args, 64);
        assert_eq!((limits.per_port, limits.per_peer), (4096, 3072));
        assert_eq!(limits.streams, 128);
        assert_eq!(
            of(&args, 500).streams,
            500,
            "one connection fills the batch"
        );
        args.max_connections = Some(1);
        assert_eq!(of(&args, 64).per_peer, 1);
        args.max_connections_per_peer = Some(2);
        let error = resolve(&args, 64).expect_err("more than all").to_string();
        for named in ["--max-connections 1", "--max-connections-per-peer 2"] {
            assert!(error.contains(named), "{error}");
        }
        args.max_connections_per_peer = Some(1);
        args.max_concurrent_streams = Some(7);
        assert_eq!(of(&args, 64).streams, 7);
    }
}
