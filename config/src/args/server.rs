use std::path::PathBuf;

const HEADING: &str = "Server";

/// Addresses and keys of the public front.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServerArgs {
    /// Address that all public ports listen on; 0.0.0.0 = every interface [default: 127.0.0.1].
    #[arg(long, env = "LOCKSTEP_HOST", value_name = "ADDRESS", help_heading = HEADING)]
    pub host: Option<String>,
    /// Port of the OpenAI-compatible HTTP server [default: 8000].
    #[arg(long, env = "LOCKSTEP_PORT", value_name = "PORT", value_parser = port,
          help_heading = HEADING)]
    pub port: Option<u16>,
    /// Port of the gRPC service lockstep.v1.Inference; 0 closes it [default: port + 1].
    #[arg(long, env = "LOCKSTEP_GRPC_PORT", value_name = "PORT", value_parser = port,
          help_heading = HEADING)]
    pub grpc_port: Option<u16>,
    /// Port of the scheduler's service for the SGLang gateway [default: closed].
    #[arg(long, env = "LOCKSTEP_SGLANG_GRPC_PORT", value_name = "PORT", value_parser = port,
          help_heading = HEADING)]
    pub sglang_grpc_port: Option<u16>,
    /// Key that clients must send as `Authorization: Bearer KEY`.
    ///
    /// Better from --api-key-file or the environment: a flag can be seen by
    /// every user of the machine.
    #[arg(long, env = "LOCKSTEP_API_KEY", value_name = "KEY", hide_env_values = true,
          help_heading = HEADING)]
    pub api_key: Option<String>,
    /// File with the key that clients must send.
    #[arg(long, env = "LOCKSTEP_API_KEY_FILE", value_name = "FILE", help_heading = HEADING)]
    pub api_key_file: Option<PathBuf>,
}

fn port(text: &str) -> Result<u16, String> {
    if text.starts_with("tcp://") {
        return Err(
            "is a Kubernetes service link, not a port; set `enableServiceLinks: false` in \
                    the pod or give the flag"
                .into(),
        );
    }
    text.parse()
        .map_err(|_| "must be a port number, 0 to 65535".into())
}
