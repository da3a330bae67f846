use super::{ConfigError, ModelConfig, ServeArgs, ServerConfig, answers, limits, lora, web};

pub(super) fn resolve(
    args: &ServeArgs,
    model: &ModelConfig,
    context_length: usize,
    api_key_required: bool,
) -> Result<ServerConfig, ConfigError> {
    let given = &args.server;
    let port = given.port.unwrap_or(8000);
    if port == 0 {
        let remedy = "Name a port that is free";
        return Err(ConfigError::value(
            "--port",
            port,
            "clients could not find it",
            remedy,
        ));
    }
    let grpc_port = match given.grpc_port {
        Some(0) => None,
        Some(port) => Some(port),
        None => port.checked_add(1).map(Some).ok_or_else(|| {
            ConfigError::conflict(
                "--port 65535",
                "--grpc-port",
                "the default gRPC port, port + 1, does not exist",
                "Give --grpc-port, where 0 closes it",
            )
        })?,
    };
    let sglang_grpc_port = given.sglang_grpc_port.filter(|port| *port > 0);
    distinct(&[
        ("--port", Some(port)),
        ("--grpc-port", grpc_port),
        ("--sglang-grpc-port", sglang_grpc_port),
    ])?;
    let (served_model_name, served_model_aliases) = names(&args.model.served_model_name, model)?;
    let host = given.host.clone().unwrap_or_else(|| "127.0.0.1".into());
    if host.is_empty() || host.contains(char::is_whitespace) || host.contains("://") {
        let remedy = "Give an IP address or a host name; 0.0.0.0 listens on every interface";
        return Err(ConfigError::value(
            "--host",
            host,
            "is not an address",
            remedy,
        ));
    }
    let server = ServerConfig {
        host,
        port,
        grpc_port,
        sglang_grpc_port,
        served_model_name,
        served_model_aliases,
        context_length,
        api_key_required,
        sglang_metrics: given.sglang_metrics,
        web: web::resolve(given)?,
        answers: answers::resolve(given)?,
        limits: limits::resolve(args)?,
    };
    lora::names(args, &server)?;
    Ok(server)
}

/// The model's name, and its other names.
fn names(given: &[String], model: &ModelConfig) -> Result<(String, Vec<String>), ConfigError> {
    let Some((first, others)) = given.split_first() else {
        return Ok((folder_name(model), Vec::new()));
    };
    if given.iter().any(|name| name.trim().is_empty()) {
        let remedy = "Leave the option out for the folder's name";
        return Err(ConfigError::value(
            "--served-model-name",
            "",
            "is empty",
            remedy,
        ));
    }
    Ok((first.clone(), others.to_vec()))
}

fn distinct(ports: &[(&'static str, Option<u16>)]) -> Result<(), ConfigError> {
    for (i, (first, port)) in ports.iter().enumerate() {
        let Some(port) = port else { continue };
        for (second, other) in &ports[i + 1..] {
            if *other == Some(*port) {
                return Err(ConfigError::conflict(
                    format!("{first} {port}"),
                    format!("{second} {port}"),
                    "each service needs a port of its own",
                    format!("Give another {second}"),
                ));
            }
        }
    }
    Ok(())
}

/// The folder's own name, also for `.` and for links; or that of a GGUF file, without its ending.
fn folder_name(model: &ModelConfig) -> String {
    if model.checkpoint.gguf().is_some()
        && let Some(stem) = model.path.file_stem()
    {
        return stem.to_string_lossy().into_owned();
    }
    let path = std::fs::canonicalize(&model.path).unwrap_or_else(|_| model.path.clone());
    path.file_name().map_or_else(
        || "model".into(),
        |name| name.to_string_lossy().into_owned(),
    )
}
