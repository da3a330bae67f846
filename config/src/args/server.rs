use std::path::PathBuf;

const HEADING: &str = "Server";

/// Parts of a tool call that are held to the request's tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StrictLevelArg {
    /// Nothing.
    #[value(alias = "0")]
    Off,
    /// The name: a call that has begun is one of a tool of the request.
    #[value(alias = "1")]
    Function,
    /// The name, and the arguments as far as the tool's schema can be followed.
    #[value(alias = "2")]
    Parameter,
}

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
    /// File with the key that operators must send to flush the cache, list and abort requests,
    /// pin the depth of drafts, and change texts and weights [default: --api-key does].
    #[arg(long, env = "LOCKSTEP_ADMIN_API_KEY_FILE", value_name = "FILE", help_heading = HEADING)]
    pub admin_api_key_file: Option<PathBuf>,
    /// Certificate of this server, with those between it and its root (PEM): all public ports
    /// speak TLS then, HTTPS and gRPC alike [default: no TLS].
    ///
    /// Files that are replaced while it serves are used for new connections within seconds.
    #[arg(long, env = "LOCKSTEP_SSL_CERTFILE", value_name = "FILE", help_heading = HEADING)]
    pub ssl_certfile: Option<PathBuf>,
    /// Private key of --ssl-certfile (PEM, without a password).
    #[arg(long, env = "LOCKSTEP_SSL_KEYFILE", value_name = "FILE", help_heading = HEADING)]
    pub ssl_keyfile: Option<PathBuf>,
    /// Roots of the certificates that clients must show (PEM) [default: they need none].
    #[arg(long, env = "LOCKSTEP_SSL_CA_CERTS", value_name = "FILE", help_heading = HEADING)]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Web pages that may use the server from a browser, such as https://chat.example.com;
    /// several with commas, * = every page [default: none].
    ///
    /// They alone get CORS headers. Without a key, requests of all other pages are refused.
    #[arg(long, env = "LOCKSTEP_CORS_ALLOWED_ORIGINS", value_name = "ORIGIN",
          value_delimiter = ',', help_heading = HEADING)]
    pub cors_allowed_origins: Vec<String>,
    /// Names that requests may call this server by, besides those that nobody else can register;
    /// several with commas, .example.com = all names below it, * = any name [default: --host].
    ///
    /// Asked about only where no key is: a page whose own name is made to lead here could
    /// read the answers otherwise (DNS rebinding).
    #[arg(long, env = "LOCKSTEP_ALLOWED_HOSTS", value_name = "NAME",
          value_delimiter = ',', help_heading = HEADING)]
    pub allowed_hosts: Vec<String>,
    /// Folder whose folders /update_weights_from_disk may name [default: none may be].
    ///
    /// Whoever may use the server may then load any model folder inside it,
    /// while it serves; several nodes are each given it, in one place. Until all
    /// have been read, old and new weights are in memory together.
    #[arg(long, env = "LOCKSTEP_WEIGHT_UPDATE_DIR", value_name = "DIR", help_heading = HEADING)]
    pub weight_update_dir: Option<PathBuf>,
    /// Format of tool calls in answers [default: auto, the format of the chat template].
    ///
    /// Chat answers have the calls in `tool_calls`. none leaves them in the text and refuses
    /// requests with tools.
    #[arg(long, env = "LOCKSTEP_TOOL_CALL_PARSER", value_name = "NAME", help_heading = HEADING)]
    pub tool_call_parser: Option<String>,
    /// Format of reasoning in answers [default: auto, the format of chat template and
    /// vocabulary].
    ///
    /// Chat answers have the reasoning in `reasoning_content`. none leaves it in the text.
    #[arg(long, env = "LOCKSTEP_REASONING_PARSER", value_name = "NAME", help_heading = HEADING)]
    pub reasoning_parser: Option<String>,
    /// Parts of a tool call that are held to the request's tools, where the request has no strict
    /// tool and leaves calls to the model [default: function].
    ///
    /// On GPUs the tokens of requests with tools are chosen on the host unless this is off.
    #[arg(long, env = "LOCKSTEP_TOOL_STRICT_LEVEL", value_name = "LEVEL", help_heading = HEADING)]
    pub tool_strict_level: Option<StrictLevelArg>,
    /// Give /metrics the figures that SGLang has under SGLang's names too, so that its
    /// dashboards and autoscalers' recipes for it work unchanged.
    #[arg(long, env = "LOCKSTEP_SGLANG_METRICS", help_heading = HEADING)]
    pub sglang_metrics: bool,
    /// Serve no /console, the page that shows this server in a browser.
    #[arg(long, env = "LOCKSTEP_DISABLE_CONSOLE", help_heading = HEADING)]
    pub disable_console: bool,
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
