//! Checks of certificates, before anything is started with them.

use lockstep_ports::{NodeTls, Tls, TlsError};
use lockstep_types::{ConfigError, NodeConfig, TlsFiles};

use crate::error::LaunchError;

/// Reports early an error that the processes would report of certificates. Returns notes for
/// people about certificates that can be used.
///
/// # Errors
/// [`LaunchError::Config`] names the option and what is wrong with its file.
pub(super) fn check(node: &NodeConfig) -> Result<Vec<String>, LaunchError> {
    let mut notes = Vec::new();
    if let Some(files) = &node.tls {
        let options = ["--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"];
        let tls = Tls::load(files).map_err(|error| of_file(error, files, options))?;
        notes.extend(note(options, files, tls.warning()));
    }
    if let Some(files) = &node.dist_tls {
        let options = [
            "--dist-ssl-certfile",
            "--dist-ssl-keyfile",
            "--dist-ssl-ca-certs",
        ];
        let tls = NodeTls::load(files).map_err(|error| of_file(error, files, options))?;
        notes.extend(note(options, files, tls.warning));
    }
    Ok(notes)
}

fn note([certificate, ..]: [&str; 3], files: &TlsFiles, warning: Option<String>) -> Option<String> {
    let path = files.certificate.display();
    warning.map(|warning| format!("{certificate} {path}: {warning}"))
}

/// The error of one of `files`, told of the option that names it: certificate, key or roots.
fn of_file(error: TlsError, files: &TlsFiles, options: [&'static str; 3]) -> LaunchError {
    let TlsError { path, message } = error;
    let [certificate, key, roots] = options;
    let option = if path == files.certificate {
        certificate
    } else if path == files.key {
        key
    } else {
        roots
    };
    LaunchError::Config(ConfigError::File {
        option,
        path,
        message,
    })
}
