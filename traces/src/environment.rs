//! OpenTelemetry's environment variables, for settings that no option gives.
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>

use std::{env, io, path::PathBuf};

use lockstep_types::TraceConfig;
use opentelemetry::Key;
use opentelemetry_sdk::{Resource, trace::Sampler};

use crate::names;

/// Default address of the collector, on this machine.
const ENDPOINT: &str = "http://localhost:4317";

/// The reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A variable has a value that is not served.
    #[error("{name}={value} {what}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Problem and remedy.
        what: &'static str,
    },
    /// The roots of the collector's certificate cannot be read.
    #[error("{name}={}: the collector's roots cannot be read: {source}", path.display())]
    Roots {
        /// Name of the variable.
        name: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The exporter refuses the collector's address or another setting.
    #[error("traces cannot be exported; look at --otlp-traces-endpoint and OTEL_EXPORTER_OTLP_*")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
    /// The export's thread could not be started.
    #[error("the export of traces could not be started")]
    Start(#[source] io::Error),
}

/// Destination of spans, and share of traced requests, from options and environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// URL of the collector.
    pub(crate) endpoint: String,
    /// Share of traced requests among those whose callers decide nothing, 0 to 1.
    pub share: f64,
    /// Roots of the collector's certificate, in PEM, beside the system's roots.
    pub(crate) roots: Option<String>,
}

impl Destination {
    /// Reads the environment for settings that `config` leaves open.
    ///
    /// # Errors
    /// [`TraceError`] for a variable whose value is not served.
    pub fn of(config: &TraceConfig) -> Result<Self, TraceError> {
        let variables = |name: &'static str| env::var(name).ok();
        Self::resolved(config, &variables)
    }

    fn resolved(config: &TraceConfig, variables: Variables<'_>) -> Result<Self, TraceError> {
        check_protocol(variables)?;
        let endpoint = endpoint(config, variables)?;
        let roots = match endpoint.starts_with("https://") {
            true => roots(variables)?,
            false => None,
        };
        let share = match config.sample_ppm {
            Some(ppm) => f64::from(ppm) / f64::from(TraceConfig::MILLION),
            None => share(variables)?,
        };
        Ok(Self {
            endpoint,
            share,
            roots,
        })
    }

    /// URL of the collector for people, without a name and a password in it.
    #[must_use]
    pub fn shown(&self) -> String {
        let Some((scheme, rest)) = self.endpoint.split_once("://") else {
            return self.endpoint.clone();
        };
        let host = rest.find('/').unwrap_or(rest.len());
        let begin = rest[..host].rfind('@').map_or(0, |at| at + 1);
        format!("{scheme}://{}", &rest[begin..])
    }

    /// Returns true if the port is by convention that of OTLP over HTTP, which serves no gRPC.
    #[must_use]
    pub fn is_for_http(&self) -> bool {
        let shown = self.shown();
        let host = shown.split('/').nth(2).unwrap_or_default();
        host.ends_with(":4318")
    }

    /// Decides about the requests to trace. A caller's decision holds, whatever the share.
    pub(crate) fn sampler(&self) -> Sampler {
        Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(self.share)))
    }
}

/// Lookup of a variable of the environment.
type Variables<'a> = &'a dyn Fn(&'static str) -> Option<String>;

/// The first of these variables that is set, with its name. An empty value counts as not set.
fn first(names: &[&'static str], variables: Variables<'_>) -> Option<(&'static str, String)> {
    let set = |name: &&'static str| {
        let value = variables(name).filter(|value| !value.is_empty())?;
        Some((*name, value))
    };
    names.iter().find_map(set)
}

/// URL of the collector.
fn endpoint(config: &TraceConfig, variables: Variables<'_>) -> Result<String, TraceError> {
    if let Some(endpoint) = &config.endpoint {
        return Ok(endpoint.clone());
    }
    let names = [
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ];
    let Some((name, value)) = first(&names, variables) else {
        return Ok(ENDPOINT.to_owned());
    };
    TraceConfig::url(&value).ok_or(TraceError::Variable {
        name,
        value,
        what: "is no address of a collector; give it as http://host:port or https://host:port",
    })
}

/// Refuses a protocol other than gRPC.
fn check_protocol(variables: Variables<'_>) -> Result<(), TraceError> {
    let names = [
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ];
    match first(&names, variables) {
        Some((name, value)) if value != "grpc" => Err(TraceError::Variable {
            name,
            value,
            what: "is not spoken; set it to grpc and name the collector's port for that",
        }),
        _ => Ok(()),
    }
}

fn share(variables: Variables<'_>) -> Result<f64, TraceError> {
    let Some((name, value)) = first(&["OTEL_TRACES_SAMPLER"], variables) else {
        return Ok(1.0);
    };
    match value.as_str() {
        "parentbased_always_on" => Ok(1.0),
        "parentbased_always_off" => Ok(0.0),
        "parentbased_traceidratio" => {
            let Some((name, value)) = first(&["OTEL_TRACES_SAMPLER_ARG"], variables) else {
                return Ok(1.0);
            };
            let share = value.parse().ok();
            share
                .filter(|share| (0.0..=1.0).contains(share))
                .ok_or(TraceError::Variable {
                    name,
                    value,
                    what: "is no share; give a number, 0 to 1",
                })
        }
        _ => Err(TraceError::Variable {
            name,
            value,
            what: "is not obeyed, for callers decide whether theirs are traced; set it to \
                   parentbased_always_on, parentbased_always_off or parentbased_traceidratio, or \
                   give --trace-sample-ratio",
        }),
    }
}

/// Roots of the collector's certificate, in PEM, beside the system's roots.
fn roots(variables: Variables<'_>) -> Result<Option<String>, TraceError> {
    let names = [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
    ];
    let Some((name, path)) = first(&names, variables) else {
        return Ok(None);
    };
    let path = PathBuf::from(path);
    match std::fs::read_to_string(&path) {
        Ok(pem) => Ok(Some(pem)),
        Err(source) => Err(TraceError::Roots { name, path, source }),
    }
}

/// Description of the service `role`. Its name begins with the environment's name, which stands
/// for the whole system.
pub(crate) fn resource(role: &str, instance: &str) -> Resource {
    let name = Resource::builder()
        .build()
        .get(&Key::from_static_str("service.name"))
        .map(|name| name.to_string())
        .filter(|name| !name.starts_with("unknown_service"));
    let name = name.as_deref().unwrap_or("lockstep");
    // A name that no other process has which sends to this collector.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let instance = format!("{} {instance} {}", host.trim(), std::process::id());
    let version = names::pair("service.version", env!("CARGO_PKG_VERSION"));
    Resource::builder()
        .with_service_name(format!("{name}-{role}"))
        .with_attributes([version, names::pair("service.instance.id", instance)])
        .build()
}

#[cfg(test)]
mod tests;
